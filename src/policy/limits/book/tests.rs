use super::*;
use crate::clock;
use crate::policy::limits::Thinking;

const PATH: &str = "/chat/completions";

fn place(model: &str) -> Place {
    Place { origin: 0, model: model.into() }
}

fn start() -> Moment {
    Moment { calendar: Timestamp(1_700_000_000_000), monotonic: clock::instant() }
}

fn after(moment: Moment, time: Duration) -> Moment {
    Moment { calendar: moment.calendar.plus(time), monotonic: moment.monotonic + time }
}

fn fact(limit: Limit, learned: Moment) -> Fact {
    Fact { limit, path: PATH.into(), said: "so".into(), learned }
}

fn max_output(bound: u64) -> Limit {
    Limit::MaxOutput { bound, thinking: Thinking::Unsaid }
}

fn allowing(tokens: u64) -> Needs {
    let body = format!("{{\"max_tokens\":{tokens}}}");
    Needs::of(body.as_bytes(), super::super::Wire::Chat, false)
}

fn refused(fit: &Fit) -> bool {
    matches!(fit, Fit::Refused { .. })
}

fn lowered(output: u64) -> Fit {
    Fit::Lowered(Bounds { output: Some(output), budget: None })
}

#[test]
fn a_limit_ends_by_itself_and_is_heard_anew() {
    let (mut book, at) = (Book::default(), start());
    assert!(book.learn(place("m"), fact(Limit::StreamsOnly, at)));
    let fit =
        |book: &Book, at: Moment| book.fit(&place("m"), PATH, &Needs::default(), at.monotonic);
    let almost = after(at, LIFE - Duration::from_secs(1));
    assert!(refused(&fit(&book, almost)) && book.matters(PATH, almost.monotonic));
    let over = after(at, LIFE);
    assert_eq!(fit(&book, over), Fit::Whole);
    assert!(!book.matters(PATH, over.monotonic) && book.all(over.monotonic).next().is_none());
    assert!(!book.learn(place("m"), fact(Limit::StreamsOnly, almost)), "no news");
    assert!(refused(&fit(&book, over)));
    assert_eq!(book.facts(&place("m"), over.monotonic).count(), 1);
}

#[test]
fn a_limit_is_one_of_its_model_its_origin_and_its_path() {
    let (mut book, at) = (Book::default(), start());
    book.learn(place("m"), fact(Limit::StreamsOnly, at));
    let needs = Needs::default();
    let elsewhere = Place { origin: 1, ..place("m") };
    for (place, path) in [(place("n"), PATH), (elsewhere, PATH), (place("m"), "/responses")] {
        assert_eq!(book.fit(&place, path, &needs, at.monotonic), Fit::Whole, "{place:?} {path}");
    }
    assert!(!book.matters("/responses", at.monotonic));
}

#[test]
fn another_number_takes_the_place_of_the_one_before_and_is_news() {
    let (mut book, at) = (Book::default(), start());
    for (bound, is_news) in [(8_192, true), (8_192, false), (16_384, true)] {
        assert_eq!(book.learn(place("m"), fact(max_output(bound), at)), is_news, "{bound}");
        assert_eq!(book.fit(&place("m"), PATH, &allowing(64_000), at.monotonic), lowered(bound));
    }
    assert_eq!(book.fit(&place("m"), PATH, &allowing(16_384), at.monotonic), Fit::Whole);
    assert_eq!(book.facts(&place("m"), at.monotonic).count(), 1);
}

#[test]
fn where_nothing_may_be_lowered_what_is_over_a_bound_is_refused() {
    let (mut book, at) = (Book::new(ModelLimits::Move, Vec::new()), start());
    book.learn(place("m"), fact(max_output(8_192), at));
    let fit = book.fit(&place("m"), PATH, &allowing(64_000), at.monotonic);
    assert!(matches!(fit, Fit::Refused { bound: Some(8_192), is_final: false, .. }), "{fit:?}");
}

#[test]
fn a_success_lifts_what_it_disproves_and_nothing_else() {
    let (mut book, at) = (Book::default(), start());
    let learn_all = |book: &mut Book| {
        for limit in [max_output(8_192), Limit::StreamsOnly, Limit::Tools] {
            book.learn(place("m"), fact(limit, at));
        }
    };
    let kinds = |book: &Book| -> Vec<_> {
        book.facts(&place("m"), at.monotonic).map(|fact| fact.limit.kind()).collect()
    };
    let streamed = |tokens| Needs { is_streamed: true, ..allowing(tokens) };
    learn_all(&mut book);
    book.note_success(&place("m"), PATH, &streamed(4_096), Bounds::default());
    assert_eq!(kinds(&book), ["max_output", "streams_only", "tools"]);
    // It was lowered: that more is taken is not shown.
    let bounds = Bounds { output: Some(8_192), budget: None };
    book.note_success(&place("m"), PATH, &streamed(64_000), bounds);
    assert_eq!(kinds(&book), ["max_output", "streams_only", "tools"]);
    book.note_success(&place("m"), "/responses", &streamed(64_000), Bounds::default());
    assert_eq!(kinds(&book), ["max_output", "streams_only", "tools"]);
    book.note_success(&place("m"), PATH, &streamed(64_000), Bounds::default());
    assert_eq!(kinds(&book), ["streams_only", "tools"]);
    book.note_success(&place("m"), PATH, &allowing(1), Bounds::default());
    assert_eq!(kinds(&book), ["tools"]);
}

#[test]
fn the_smallest_input_that_was_refused_counts_and_a_larger_one_that_was_served_moves_it() {
    let (mut book, at) = (Book::default(), start());
    let sized = |size| Needs { size, ..Needs::default() };
    let too_long = |smallest| Limit::MaxInput { bound: 1_000, smallest, with_media: false };
    book.learn(place("m"), fact(too_long(500), at));
    assert!(!book.learn(place("m"), fact(too_long(700), at)));
    let fits =
        |book: &Book, size| !refused(&book.fit(&place("m"), PATH, &sized(size), at.monotonic));
    assert!(fits(&book, 499) && !fits(&book, 500));
    book.note_success(&place("m"), PATH, &sized(600), Bounds::default());
    assert!(fits(&book, 600) && !fits(&book, 601));
    assert_eq!(book.max_input(&place("m"), PATH, at.monotonic), Some(1_000));
    let with_picture = Needs { media: Media::IMAGE, ..sized(9_000) };
    assert_eq!(book.fit(&place("m"), PATH, &with_picture, at.monotonic), Fit::Whole);
}

#[test]
fn a_model_whose_own_budget_does_not_fit_under_its_lowered_bound_refuses() {
    let (mut book, at) = (Book::default(), start());
    let own = Limit::DefaultBudget { bound: 32_768, thinking: Thinking::Unsaid };
    book.learn(place("m"), fact(max_output(8_192), at));
    assert_eq!(book.fit(&place("m"), PATH, &allowing(64_000), at.monotonic), lowered(8_192));
    book.learn(place("m"), fact(own, at));
    assert!(refused(&book.fit(&place("m"), PATH, &allowing(64_000), at.monotonic)));
    // A success with the lowered number disproves what was learned of it, and not the bound.
    let bounds = Bounds { output: Some(8_192), budget: None };
    book.note_success(&place("m"), PATH, &allowing(64_000), bounds);
    assert_eq!(book.fit(&place("m"), PATH, &allowing(64_000), at.monotonic), lowered(8_192));
}

#[test]
fn models_that_see_come_first_then_those_that_have_seen() {
    let (mut book, at) = (Book::new(ModelLimits::Adapt, vec!["sees".into()]), start());
    let picture = Needs { media: Media::IMAGE.and(Media::FILE), ..Needs::default() };
    assert!(book.matters(PATH, at.monotonic));
    book.note_success(&place("saw"), PATH, &picture, Bounds::default());
    let ranks = ["sees", "saw", "m"].map(|model| book.blindness(&place(model), &picture));
    assert_eq!(ranks, [0, 1, 2]);
    assert_eq!(book.blindness(&place("m"), &Needs::default()), 0);
    book.forget(Some("saw"));
    assert_eq!(book.blindness(&place("saw"), &picture), 2);
}

#[test]
fn a_model_is_forgotten_alone_or_with_all() {
    let (mut book, at) = (Book::default(), start());
    for model in ["m", "n"] {
        book.learn(place(model), fact(Limit::Tools, at));
    }
    book.forget(Some("m"));
    assert_eq!(book.all(at.monotonic).map(|(model, _)| model).collect::<Vec<_>>(), ["n"]);
    book.forget(None);
    assert_eq!(book.all(at.monotonic).count(), 0);
}

#[test]
fn made_up_parameters_do_not_fill_the_memory() {
    let (mut book, at) = (Book::default(), start());
    for number in 0..10 * MOST {
        let limit = Limit::Parameter(format!("p{number}").into());
        book.learn(place("m"), fact(limit, at));
    }
    assert_eq!(book.facts(&place("m"), at.monotonic).count(), MOST);
}
