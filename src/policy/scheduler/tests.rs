use super::*;
use crate::policy::limits::{Limit, Media, ModelLimits, Needs, Thinking, UpperBound};

const MONTH: Duration = Duration::from_secs(2_592_000);
const BASE: Protocol = Protocol::OpenAi;
const START: Timestamp = Timestamp(1_700_000_000_000);

fn scheduler_from(keys: usize, models: usize, file: StateFile) -> Scheduler {
    let keys = (1..=keys).map(|n| format!("k{n}")).collect();
    let models = (1..=models).map(|n| format!("m{n}")).collect();
    Scheduler::new(Arc::new(Pool::new(keys, models)), MONTH, file, START)
}

fn scheduler(keys: usize, models: usize) -> Scheduler {
    scheduler_from(keys, models, StateFile::default())
}

fn with_cursors(keys: usize, models: usize, cursors: &[(&str, &str)]) -> Scheduler {
    let mut file = StateFile::default();
    for (name, value) in cursors {
        file.runtime_state.insert((*name).into(), RuntimeRecord::new((*value).into(), START));
    }
    scheduler_from(keys, models, file)
}

fn slot(key: usize, model: usize) -> Slot {
    Slot { key: KeyIndex(key - 1), model: format!("m{model}").into() }
}

fn moment(calendar: Timestamp) -> Moment {
    Moment { calendar, monotonic: crate::clock::instant() }
}

fn ask(tried: &Tried) -> Ask<'_> {
    Ask::plain(tried, Wanted::Pool, BASE)
}

fn tried(slots: &[Slot]) -> Tried {
    let mut tried = Tried::default();
    slots.iter().cloned().for_each(|slot| tried.add(slot, Bounds::default()));
    tried
}

fn next(scheduler: &mut Scheduler, slots: &[Slot], now: Timestamp) -> Next {
    scheduler.next_slot(&ask(&tried(slots)), moment(now))
}

/// Takes the next slot of a fresh request.
fn take(scheduler: &mut Scheduler, now: Timestamp) -> Pick {
    take_after(scheduler, &[], now)
}

fn take_after(scheduler: &mut Scheduler, tried: &[Slot], now: Timestamp) -> Pick {
    match next(scheduler, tried, now) {
        Next::Slot(pick) => pick,
        other => panic!("no slot: {other:?}"),
    }
}

fn exhaust_next(scheduler: &mut Scheduler, now: Timestamp) -> Slot {
    let pick = take(scheduler, now);
    scheduler.report_exhausted(&pick, "used up", now);
    pick.slot
}

fn cursors(scheduler: &Scheduler) -> (usize, Vec<usize>) {
    let models = scheduler.model_cursors.iter().map(|cursor| cursor.at).collect();
    (scheduler.key_cursor.at, models)
}

#[test]
fn all_models_of_a_key_come_before_the_next_key() {
    let mut scheduler = scheduler(2, 3);
    let order: Vec<Slot> = (0..6).map(|_| exhaust_next(&mut scheduler, START)).collect();
    let expected = [slot(1, 1), slot(1, 2), slot(1, 3), slot(2, 1), slot(2, 2), slot(2, 3)];
    assert_eq!(order, expected);
}

#[test]
fn the_walk_starts_at_the_cursors_and_wraps() {
    let mut scheduler = with_cursors(2, 3, &[("key_cursor", "1"), ("model_cursor:k2", "2")]);
    let order: Vec<Slot> = (0..6).map(|_| exhaust_next(&mut scheduler, START)).collect();
    let expected = [slot(2, 3), slot(2, 1), slot(2, 2), slot(1, 1), slot(1, 2), slot(1, 3)];
    assert_eq!(order, expected);
}

#[test]
fn a_cursor_beyond_the_list_is_taken_modulo_and_nonsense_is_zero() {
    let mut scheduler = with_cursors(3, 2, &[("key_cursor", "7"), ("model_cursor:k2", "seven")]);
    assert_eq!(take(&mut scheduler, START).slot, slot(2, 1));
}

#[test]
fn a_request_stays_on_its_slot_until_that_is_exhausted() {
    let mut scheduler = scheduler(2, 2);
    for _ in 0..100 {
        let pick = take(&mut scheduler, START);
        assert_eq!(pick.slot, slot(1, 1));
        scheduler.report_success(&pick, BASE, START);
    }
}

#[test]
fn an_exhausted_slot_cools_alone_for_the_configured_time() {
    let mut scheduler = scheduler(1, 2);
    let pick = take(&mut scheduler, START);
    let outcome = scheduler.report_exhausted(&pick, "used up", START);
    assert_eq!(outcome, Exhausted { until: START.plus(MONTH), failures: 1, twin: None });
    assert_eq!(scheduler.available_count(START), 1);
    assert_eq!(take(&mut scheduler, START).slot, slot(1, 2));
}

#[test]
fn a_slot_is_available_again_at_the_very_end_of_its_cooldown() {
    let mut scheduler = scheduler(1, 1);
    exhaust_next(&mut scheduler, START);
    let end = START.plus(MONTH);
    let before = Timestamp(end.0 - 1);
    assert!(
        matches!(next(&mut scheduler, &[], before), Next::NoneAvailable { until, .. } if until == Some(end))
    );
    assert_eq!(take(&mut scheduler, end).slot, slot(1, 1));
}

#[test]
fn when_everything_cools_the_soonest_end_is_told() {
    let mut scheduler = scheduler(1, 2);
    exhaust_next(&mut scheduler, START);
    exhaust_next(&mut scheduler, Timestamp(START.0 + 5_000));
    let now = Timestamp(START.0 + 9_000);
    let Next::NoneAvailable { until, cooling: 2, guarded: 0, disabled: 0 } =
        next(&mut scheduler, &[], now)
    else {
        panic!("a slot")
    };
    assert_eq!(until, Some(START.plus(MONTH)));
}

#[test]
fn a_request_never_gets_a_slot_twice() {
    let mut scheduler = scheduler(1, 2);
    let tried = [slot(1, 1)];
    assert_eq!(take_after(&mut scheduler, &tried, START).slot, slot(1, 2));
    let tried = [slot(1, 1), slot(1, 2)];
    assert!(matches!(next(&mut scheduler, &tried, START), Next::NoneLeft));
}

#[test]
fn exhaustion_moves_the_model_cursor_to_the_next_available_model() {
    let mut scheduler = with_cursors(1, 3, &[("model_cursor:k1", "1")]);
    exhaust_next(&mut scheduler, START);
    assert_eq!(cursors(&scheduler), (0, vec![2]));
    exhaust_next(&mut scheduler, START);
    assert_eq!(cursors(&scheduler), (0, vec![0]));
}

#[test]
fn a_key_without_models_hands_the_key_cursor_to_the_next_key_that_has_one() {
    let mut scheduler = scheduler(3, 1);
    let bounds = Bounds::default();
    let second = Pick { slot: slot(2, 1), bounds, began: Tick(0), direct: true };
    scheduler.report_exhausted(&second, "used up", START);
    assert_eq!(cursors(&scheduler).0, 0);
    exhaust_next(&mut scheduler, START);
    assert_eq!(cursors(&scheduler).0, 2);
}

#[test]
fn cursors_stay_where_they_are_when_nothing_is_left() {
    let mut scheduler = scheduler(2, 1);
    exhaust_next(&mut scheduler, START);
    exhaust_next(&mut scheduler, START);
    assert_eq!(cursors(&scheduler), (1, vec![0, 0]));
}

#[test]
fn a_slot_reached_past_an_available_one_moves_no_cursor() {
    let mut scheduler = scheduler(2, 2);
    let pick = take_after(&mut scheduler, &[slot(1, 1)], START);
    assert_eq!(pick.slot, slot(1, 2));
    scheduler.report_success(&pick, BASE, START);
    assert_eq!(cursors(&scheduler), (0, vec![0, 0]));
    scheduler.report_exhausted(&pick, "used up", START);
    assert_eq!(cursors(&scheduler), (0, vec![0, 0]), "the first slot is still good");
}

#[test]
fn a_success_over_cooling_slots_moves_both_cursors() {
    let mut scheduler = scheduler(2, 2);
    for model in [1, 2] {
        let state = scheduler.slots.get_mut(&slot(1, model)).unwrap();
        state.cooldown_until = START.plus(MONTH);
    }
    let pick = take(&mut scheduler, START);
    scheduler.report_success(&pick, BASE, START);
    assert_eq!(cursors(&scheduler), (1, vec![0, 0]));
}

#[test]
fn fifty_parallel_exhaustions_are_all_counted_and_nobody_starts_there_again() {
    let mut scheduler = scheduler(1, 2);
    let picks: Vec<Pick> = (0..50).map(|_| take(&mut scheduler, START)).collect();
    for (n, pick) in picks.iter().enumerate() {
        let outcome = scheduler.report_exhausted(pick, "used up", START);
        assert_eq!(outcome.failures, n as u64 + 1);
        let next = take_after(&mut scheduler, std::slice::from_ref(&pick.slot), START);
        assert_eq!(next.slot, slot(1, 2));
        scheduler.report_success(&next, BASE, START);
        assert_eq!(take(&mut scheduler, START).slot, slot(1, 2));
    }
}

#[test]
fn a_success_stamps_its_slot_and_clears_the_error() {
    let mut scheduler = scheduler(1, 1);
    exhaust_next(&mut scheduler, START);
    let later = START.plus(MONTH);
    let pick = take(&mut scheduler, later);
    assert!(scheduler.report_success(&pick, BASE, later).revived, "the cooldown had ended");
    let view = &scheduler.view(moment(later))[0];
    assert_eq!((view.last_error, view.last_used_at), (None, Some(later)));
    assert_eq!((view.cooldown_until, view.failure_count), (None, 1));
    let pick = take(&mut scheduler, later);
    assert!(!scheduler.report_success(&pick, BASE, later).revived, "it is said once");
}

#[test]
fn a_success_that_began_before_the_exhaustion_does_not_lift_it() {
    let mut scheduler = scheduler(1, 2);
    let long_stream = take(&mut scheduler, START);
    exhaust_next(&mut scheduler, START);
    let later = Timestamp(START.0 + 60_000);
    assert!(!scheduler.report_success(&long_stream, BASE, later).revived);
    let view = &scheduler.view(moment(later))[0];
    assert!(!view.is_available());
    assert_eq!((view.last_error, view.last_used_at), (Some("used up"), Some(later)));
    assert_eq!(cursors(&scheduler), (0, vec![1]));
}

#[test]
fn current_marks_where_the_next_request_starts() {
    let mut scheduler = scheduler(2, 2);
    exhaust_next(&mut scheduler, START);
    exhaust_next(&mut scheduler, START);
    let marked: Vec<Slot> = scheduler
        .view(moment(START))
        .iter()
        .filter(|view| view.current_model)
        .map(|view| view.slot.clone())
        .collect();
    assert_eq!(marked, [take(&mut scheduler, START).slot]);
}

#[test]
fn current_marks_one_slot_also_where_none_is_available_and_cursors_are_shown_apart() {
    let mut scheduler = with_cursors(2, 2, &[("key_cursor", "1"), ("model_cursor:k1", "1")]);
    let marked = |scheduler: &Scheduler, is_marked: fn(&SlotView<'_>) -> bool| -> Vec<Slot> {
        let views = scheduler.view(moment(START));
        views.iter().filter(|view| is_marked(view)).map(|view| view.slot.clone()).collect()
    };
    assert_eq!(marked(&scheduler, |view| view.current_model), [slot(2, 1)]);
    assert_eq!(marked(&scheduler, |view| view.current_key), [slot(2, 1), slot(2, 2)]);
    assert_eq!(marked(&scheduler, |view| view.model_cursor), [slot(1, 2), slot(2, 1)]);
    (0..4).for_each(|_| drop(exhaust_next(&mut scheduler, START)));
    assert_eq!(marked(&scheduler, |view| view.current_model).len(), 1);
    assert_eq!(marked(&scheduler, |view| view.current_key).len(), 2);
}

#[test]
fn a_success_changes_two_times_and_the_error_and_nothing_else() {
    let mut scheduler = scheduler(1, 1);
    exhaust_next(&mut scheduler, START);
    let later = START.plus(MONTH * 2);
    let pick = take(&mut scheduler, later);
    assert!(scheduler.report_success(&pick, BASE, later).revived);
    let mut after_restart = scheduler_from(1, 1, scheduler.snapshot().to_file());
    for scheduler in [&mut scheduler, &mut after_restart] {
        let file = scheduler.snapshot().to_file();
        let record = &file.model_state["k1:m1"];
        assert_eq!((record.cooldown_until, record.failure_count), (START.plus(MONTH), 1));
        assert_eq!((record.last_used_at, record.updated_at), (Some(later), later));
        assert_eq!(scheduler.view(moment(later))[0].cooldown_until, None, "it is over");
        let pick = take(scheduler, later);
        assert!(!scheduler.report_success(&pick, BASE, later).revived, "it is said once");
    }
}

#[test]
fn what_was_disabled_for_a_while_leaves_the_cursors_where_they_were() {
    let one = |key: usize, model: usize| {
        let slot = slot(key, model);
        Scope { key: Some(slot.key), model: Some(slot.model) }
    };
    let whole_key = || Scope { key: Some(KeyIndex(0)), model: None };
    for (scopes, expected) in [
        (vec![one(1, 1)], slot(1, 2)),
        (vec![whole_key()], slot(2, 1)),
        (vec![one(1, 1), one(1, 2)], slot(1, 3)),
    ] {
        let mut scheduler = scheduler(2, 3);
        scopes.iter().for_each(|scope| drop(scheduler.disable(scope.clone(), START)));
        let pick = take(&mut scheduler, START);
        assert_eq!(pick.slot, expected);
        scheduler.report_success(&pick, BASE, START);
        // Not even a slot that runs out meanwhile moves them.
        scheduler.report_exhausted(&pick, "used up", START);
        let next = take(&mut scheduler, START);
        scheduler.report_success(&next, BASE, START);
        assert_eq!(cursors(&scheduler).0, 0, "{scopes:?}");
        assert_eq!(cursors(&scheduler).1[0], 0, "{scopes:?}");
        scheduler.enable(&Scope::default(), START);
        assert_eq!(take(&mut scheduler, START).slot, slot(1, 1), "{scopes:?}");
    }
}

#[test]
fn a_record_is_found_by_its_content_whatever_its_name() {
    let mut file = StateFile::default();
    let mut record = SlotRecord::new("k1", "m1", START);
    record.cooldown_until = START.plus(MONTH);
    file.model_state.insert("k1-m1".to_owned(), record);
    let mut scheduler = scheduler_from(1, 2, file);
    assert_eq!(take(&mut scheduler, START).slot, slot(1, 2));
    scheduler.reset(&Scope::default(), false, START);
    let written = scheduler.snapshot().to_file();
    assert_eq!(written.model_state.keys().collect::<Vec<_>>(), ["k1:m1", "k1:m2"]);
    let mut scheduler = scheduler_from(1, 2, written);
    assert_eq!(take(&mut scheduler, START).slot, slot(1, 1), "the reset is not undone");
}

#[test]
fn every_change_raises_the_revision_and_asking_does_not() {
    let mut scheduler = scheduler(1, 2);
    let fresh = scheduler.revision();
    let pick = take(&mut scheduler, START);
    assert_eq!(scheduler.revision(), fresh);
    scheduler.report_success(&pick, BASE, START);
    assert_eq!(scheduler.revision(), fresh + 1);
    scheduler.report_exhausted(&pick, "used up", START);
    assert_eq!(scheduler.revision(), fresh + 2);
}

#[test]
fn a_stamp_alone_is_no_lasting_change() {
    let mut scheduler = scheduler(1, 2);
    let lasts = |scheduler: &Scheduler| scheduler.lasting_revision() == scheduler.revision();
    let first = take(&mut scheduler, START);
    scheduler.report_success(&first, BASE, START);
    assert!(!lasts(&scheduler));
    scheduler.report_exhausted(&first, "used up", START);
    assert!(lasts(&scheduler), "a cooldown");
    let second = take(&mut scheduler, START);
    scheduler.report_success(&second, BASE, START);
    assert!(!lasts(&scheduler), "the cursor was there already");
    let after = START.plus(MONTH);
    scheduler.report_exhausted(&second, "used up", START);
    let third = take(&mut scheduler, after);
    scheduler.report_success(&third, BASE, after);
    assert!(lasts(&scheduler), "a cooldown has ended");
}

#[test]
fn the_state_survives_its_file() {
    let mut before = scheduler(2, 2);
    exhaust_next(&mut before, START);
    let pick = take(&mut before, START);
    before.report_success(&pick, BASE, Timestamp(START.0 + 7));
    let file = before.snapshot().to_file();
    let read = StateFile::parse(&file.to_bytes()).unwrap();
    let after = scheduler_from(2, 2, read);
    assert_eq!(cursors(&after), cursors(&before));
    assert_eq!(after.snapshot().to_file(), file);
}

#[test]
fn strangers_records_are_written_back() {
    let mut file = StateFile::default();
    file.model_state.insert("old:gone".into(), SlotRecord::new("old", "gone", Timestamp(3)));
    file.runtime_state.insert("task:1".into(), RuntimeRecord::new("k9".into(), Timestamp(4)));
    let written = scheduler_from(1, 1, file.clone()).snapshot().to_file();
    assert_eq!(written.model_state["old:gone"], file.model_state["old:gone"]);
    assert_eq!(written.runtime_state["task:1"], file.runtime_state["task:1"]);
    assert_eq!(written.model_state.len(), 2);
}

/// Whom a request with a picture that allows so many tokens gets, and with which bound.
fn see(scheduler: &mut Scheduler, needs: &Needs, at: Moment) -> Result<(Slot, Option<u64>), Next> {
    let tried = Tried::default();
    let ask = Ask { needs: Some(needs), ..ask(&tried) };
    match scheduler.next_slot(&ask, at) {
        Next::Slot(pick) => Ok((pick.slot, pick.bounds.output)),
        next => Err(next),
    }
}

fn with_picture(tokens: u64) -> Needs {
    let outputs = vec![UpperBound { name: "max_tokens", value: tokens, span: 0..0 }];
    Needs { media: Media::IMAGE, outputs, ..Needs::default() }
}

#[test]
fn a_model_that_sees_gets_a_picture_even_if_a_bound_is_lowered_or_it_backs_off() {
    let mut scheduler = scheduler(1, 3).with_limits(ModelLimits::Adapt, &["m3".to_owned()]);
    let (at, needs) = (moment(START), with_picture(64_000));
    let limit = Limit::MaxOutput { bound: 8_192, thinking: Thinking::Unsaid };
    scheduler.learn_limit(&slot(1, 3), "/chat/completions", limit, "so", at);
    assert_eq!(see(&mut scheduler, &needs, at).unwrap(), (slot(1, 3), Some(8_192)));
    scheduler.bench_slot(&slot(1, 3), BASE, Rest::Growing, at.monotonic);
    assert_eq!(see(&mut scheduler, &needs, at).unwrap(), (slot(1, 3), Some(8_192)));
    let text = Needs { media: Media::default(), ..needs.clone() };
    assert_eq!(see(&mut scheduler, &text, at).unwrap(), (slot(1, 1), None));
    scheduler.learn_limit(&slot(1, 3), "/chat/completions", Limit::StreamsOnly, "so", at);
    assert_eq!(see(&mut scheduler, &needs, at).unwrap(), (slot(1, 1), None), "it refuses");
}

#[test]
fn a_picture_that_all_models_have_refused_goes_to_the_one_heard_longest_ago() {
    let mut scheduler = scheduler(2, 2).with_limits(ModelLimits::Adapt, &[]);
    let start = moment(START);
    let later = |seconds| {
        let time = Duration::from_secs(seconds);
        Moment { calendar: START.plus(time), monotonic: start.monotonic + time }
    };
    let refuse = |scheduler: &mut Scheduler, slot: &Slot, seconds| {
        let (path, limit) = ("/chat/completions", Limit::Media(Media::IMAGE));
        scheduler.learn_limit(slot, path, limit, "blind", later(seconds))
    };
    let needs = with_picture(1);
    refuse(&mut scheduler, &slot(1, 2), 1);
    refuse(&mut scheduler, &slot(1, 1), 2);
    assert_eq!(see(&mut scheduler, &needs, later(3)).unwrap().0, slot(1, 2));
    refuse(&mut scheduler, &slot(1, 2), 3);
    assert_eq!(see(&mut scheduler, &needs, later(4)).unwrap().0, slot(1, 1));
    // One call for a request.
    let mut tried = Tried::default();
    let limit = Limit::Media(Media::IMAGE);
    tried.add_refusal(scheduler.place(&slot(1, 1)), Bounds::default(), &limit);
    let ask = Ask { needs: Some(&needs), has_answer: true, ..ask(&tried) };
    assert!(matches!(scheduler.next_slot(&ask, later(4)), Next::NoneLeft));
}

#[test]
fn a_model_that_is_known_to_refuse_pictures_is_not_asked_while_one_that_is_not_cools() {
    let mut scheduler = scheduler(1, 2).with_limits(ModelLimits::Adapt, &[]);
    let at = moment(START);
    exhaust_next(&mut scheduler, START);
    let limit = Limit::Media(Media::IMAGE);
    scheduler.learn_limit(&slot(1, 2), "/chat/completions", limit, "blind", at);
    let next = see(&mut scheduler, &with_picture(1), at).unwrap_err();
    assert!(matches!(&next, Next::NoneTakes { said } if &**said == "blind"), "{next:?}");
}
