use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::clock::Moment;
use crate::policy::charge::Charge;
use crate::policy::guard::Quotas;
use crate::policy::pool::KeyIndex;
use crate::policy::route::Protocol;
use crate::policy::scheduler::{Ask, Next, Pick, Scope, Standing, Tried, Wanted};
use crate::policy::usage::Usage;

const START: Timestamp = Timestamp(1_700_000_000_000);
const COOLDOWN: Duration = Duration::from_secs(60);

fn guard(percent: Option<u8>) -> Guard {
    let exceptions = [("m3".to_owned(), 0)].to_vec();
    Guard { quotas: Quotas { usual: 100, exceptions }, percent }
}

/// Two keys with two models of 100 tokens and a third of an unknown number.
fn scheduler_from(file: StateFile, percent: Option<u8>) -> (Scheduler, Guarded) {
    let models = ["m1", "m2", "m3"].map(str::to_owned).to_vec();
    let pool = Arc::new(Pool::new(vec!["k1".into(), "k2".into()], models));
    let mut scheduler = Scheduler::new(pool, COOLDOWN, file, START);
    let guarded = scheduler.set_guard(guard(percent), START);
    (scheduler, guarded)
}

fn scheduler() -> Scheduler {
    scheduler_from(StateFile::default(), Some(90)).0
}

fn restarted(scheduler: &Scheduler, percent: Option<u8>) -> (Scheduler, Guarded) {
    let written = scheduler.snapshot().to_file().to_bytes();
    scheduler_from(StateFile::parse(&written).unwrap(), percent)
}

fn slot(key: usize, model: usize) -> Slot {
    Slot { key: KeyIndex(key - 1), model: format!("m{model}").into() }
}

fn moment(calendar: Timestamp) -> Moment {
    Moment { calendar, monotonic: crate::clock::instant() }
}

fn next(scheduler: &mut Scheduler, now: Timestamp) -> Next {
    let tried = &Tried::default();
    let (wanted, base) = (Wanted::Pool, Protocol::OpenAi);
    let ask = Ask::plain(tried, wanted, base);
    scheduler.next_slot(&ask, moment(now))
}

#[track_caller]
fn take(scheduler: &mut Scheduler) -> Pick {
    match next(scheduler, START) {
        Next::Slot(pick) => pick,
        other => panic!("no slot: {other:?}"),
    }
}

fn said(tokens: u64) -> Charge {
    Charge { said: Some(Usage { output: tokens, ..Usage::default() }), estimated: 0 }
}

fn unsaid(estimated: u64) -> Charge {
    Charge { said: None, estimated }
}

fn pictures() -> Charge {
    let usage = Usage { images: 1, in_other_units: true, ..Usage::default() };
    Charge { said: Some(usage), estimated: 0 }
}

fn use_up(scheduler: &mut Scheduler, slot: &Slot) {
    assert!(scheduler.count(slot, 1, &said(90), START).left.is_some());
}

fn standing(scheduler: &Scheduler, slot: &Slot, now: Timestamp) -> (Standing, u64) {
    let views = scheduler.view(moment(now));
    let view = views.iter().find(|view| view.slot == *slot).unwrap();
    (view.standing, view.failure_count)
}

fn only(slot: &Slot) -> Scope {
    Scope { key: Some(slot.key), model: Some(Arc::clone(&slot.model)) }
}

#[test]
fn a_slot_is_left_when_it_reaches_its_share_and_the_cursors_leave_it() {
    let mut scheduler = scheduler();
    for _ in 0..7 {
        assert_eq!(take(&mut scheduler).slot, slot(1, 1));
        assert_eq!(scheduler.count(&slot(1, 1), 1, &said(12), START).left, None);
    }
    let left = scheduler.count(&slot(1, 1), 1, &said(12), START).left.unwrap();
    assert_eq!((left.counted, left.estimated, left.limit), (96, 0, 90));
    assert_eq!(left.until, START.plus(COOLDOWN));
    assert_eq!(standing(&scheduler, &slot(1, 1), START), (Standing::Guarded, 0));
    assert_eq!(scheduler.model_cursors[0].at, 1);
    assert_eq!(take(&mut scheduler).slot, slot(1, 2));
    let record = &scheduler.snapshot().to_file().model_state["k1:m1"];
    assert_eq!(record.last_error.as_deref(), Some("left at 90 % of 100 tokens, by QUOTA_GUARD"));
    assert_eq!((record.cooldown_until, record.failure_count), (left.until, 0));
}

#[test]
fn estimates_count_like_what_was_said_and_are_kept_apart() {
    let mut scheduler = scheduler();
    scheduler.count(&slot(1, 1), 1, &said(50), START);
    let left = scheduler.count(&slot(1, 1), 1, &unsaid(40), START).left.unwrap();
    assert_eq!((left.counted, left.estimated), (50, 40));
    let tally = scheduler.tally(&slot(1, 1));
    assert_eq!((tally.requests, tally.unknown_requests), (2, 1));
}

#[test]
fn what_is_unknown_or_off_or_no_tokens_is_never_left() {
    let mut guarded = scheduler();
    assert_eq!(guarded.count(&slot(1, 3), 1, &said(u64::MAX), START).left, None);
    assert_eq!(guarded.guarding(&slot(1, 3)), Guarding::UnknownQuota);
    guarded.count(&slot(1, 1), 1, &pictures(), START);
    assert_eq!(guarded.count(&slot(1, 1), 1, &said(1_000), START).left, None);
    assert_eq!(guarded.guarding(&slot(1, 1)), Guarding::OtherUnits);
    let (mut off, _) = scheduler_from(StateFile::default(), None);
    assert_eq!(off.count(&slot(1, 1), 1, &said(1_000), START).left, None);
    assert_eq!(off.guarding(&slot(1, 1)), Guarding::Off);
}

#[test]
fn a_slot_that_turns_out_to_count_pictures_is_free_again() {
    let mut scheduler = scheduler();
    use_up(&mut scheduler, &slot(1, 1));
    assert_eq!(scheduler.count(&slot(1, 1), 1, &pictures(), START).left, None);
    assert_eq!(take(&mut scheduler).slot, slot(1, 2), "the cursor had moved on");
    assert_eq!(standing(&scheduler, &slot(1, 1), START).0, Standing::Available);
}

#[test]
fn a_guarded_pool_tries_nothing_again_when_a_cooldown_ends() {
    let mut scheduler = scheduler();
    use_up(&mut scheduler, &slot(1, 1));
    let pick = take(&mut scheduler);
    scheduler.report_exhausted(&pick, "used up", START);
    let later = START.plus(COOLDOWN * 2);
    for left in [slot(1, 1), slot(1, 2)] {
        assert_eq!(standing(&scheduler, &left, later).0, Standing::Guarded);
    }
    assert_eq!(scheduler.available_count(later), 4);
    let (off, _) = restarted(&scheduler, None);
    assert_eq!(off.available_count(later), 6);
}

#[test]
fn a_pool_that_is_left_says_so_and_names_no_end() {
    let mut scheduler = scheduler();
    scheduler.disable(Scope { key: None, model: Some("m3".into()) }, START);
    for left in [slot(1, 1), slot(1, 2), slot(2, 1)] {
        use_up(&mut scheduler, &left);
    }
    let pick = take(&mut scheduler);
    scheduler.report_exhausted(&pick, "used up", START);
    let Next::NoneAvailable { until: None, cooling: 1, guarded: 3, disabled: 2 } =
        next(&mut scheduler, START)
    else {
        panic!("{:?}", next(&mut scheduler, START))
    };
}

#[test]
fn a_reset_lifts_the_guard_for_good_and_a_reset_of_the_count_arms_it_again() {
    let mut before = scheduler();
    use_up(&mut before, &slot(1, 1));
    assert_eq!(before.reset(&only(&slot(1, 1)), false, START), [slot(1, 1)]);
    let (after, guarded) = restarted(&before, Some(90));
    assert_eq!(guarded, Guarded::default());
    for mut scheduler in [before, after] {
        assert_eq!(scheduler.guarding(&slot(1, 1)), Guarding::Lifted);
        assert_eq!(scheduler.count(&slot(1, 1), 1, &said(1_000), START).left, None);
        scheduler.reset(&only(&slot(1, 1)), true, START);
        assert_eq!(scheduler.tally(&slot(1, 1)), Default::default());
        assert_eq!(scheduler.guarding(&slot(1, 1)), Guarding::On);
        use_up(&mut scheduler, &slot(1, 1));
    }
}

#[test]
fn a_reset_lifts_nothing_from_slots_below_their_limit() {
    let mut scheduler = scheduler();
    scheduler.count(&slot(1, 1), 1, &said(89), START);
    scheduler.reset(&Scope::default(), false, START);
    assert_eq!(scheduler.guarding(&slot(1, 1)), Guarding::On);
    assert!(scheduler.count(&slot(1, 1), 1, &said(1), START).left.is_some());
}

#[test]
fn a_refusal_of_dashscope_takes_the_place_of_the_guard() {
    let mut scheduler = scheduler();
    let pick = take(&mut scheduler);
    use_up(&mut scheduler, &slot(1, 1));
    scheduler.report_exhausted(&pick, "used up", START);
    assert_eq!(scheduler.guarding(&slot(1, 1)), Guarding::On);
    assert_eq!(standing(&scheduler, &slot(1, 1), START), (Standing::Cooling(COOLDOWN), 1));
    let (off, guarded) = restarted(&scheduler, None);
    assert!(guarded.released.is_empty());
    assert!(off.view(moment(START))[0].cooldown_until.is_some());
}

#[test]
fn a_late_success_neither_ends_nor_excuses_what_the_guard_did() {
    let mut scheduler = scheduler();
    let late = take(&mut scheduler);
    use_up(&mut scheduler, &slot(1, 1));
    scheduler.report_success(&late, Protocol::OpenAi, START);
    assert_eq!(standing(&scheduler, &slot(1, 1), START).0, Standing::Guarded);
    assert!(scheduler.view(moment(START))[0].last_error.is_some());
    assert_eq!(take(&mut scheduler).slot, slot(1, 2));
}

#[test]
fn what_is_past_the_limit_at_the_start_is_left_and_what_is_below_it_again_is_free() {
    let (mut off, _) = scheduler_from(StateFile::default(), None);
    off.count(&slot(1, 1), 1, &said(95), START);
    off.count(&slot(2, 2), 1, &unsaid(50), START);
    let (on, guarded) = restarted(&off, Some(50));
    let left: Vec<Slot> = guarded.left.into_iter().map(|left| left.slot).collect();
    assert_eq!(left, [slot(1, 1), slot(2, 2)]);
    let (higher, guarded) = restarted(&on, Some(90));
    assert_eq!((guarded.left, guarded.released), (vec![], vec![slot(2, 2)]));
    assert_eq!(standing(&higher, &slot(1, 1), START).0, Standing::Guarded);
    assert!(higher.view(moment(START)).iter().all(|view| {
        view.slot == slot(1, 1) || view.last_error.is_none() && view.is_available()
    }));
    let (off, guarded) = restarted(&higher, None);
    assert_eq!(guarded.released, [slot(1, 1)]);
    assert_eq!(off.available_count(START), 6);
}

#[test]
fn a_cooldown_of_the_guard_is_to_be_on_disk_before_anybody_notices_it() {
    let mut scheduler = scheduler();
    scheduler.count(&slot(1, 1), 1, &said(1), START);
    assert_eq!(scheduler.lasting_revision(), scheduler.revision(), "the guard goes by it");
    assert_eq!(scheduler.cooled_revision(), 0);
    use_up(&mut scheduler, &slot(1, 1));
    assert_eq!(scheduler.cooled_revision(), scheduler.revision());
}

#[test]
fn marks_of_others_stay_in_the_file_as_they_are() {
    let mut file = StateFile::default();
    for (name, value) in [("guard:k9:m1", "left"), ("guard:k1:m1", "of a later version")] {
        file.runtime_state.insert(name.into(), RuntimeRecord::new(value.into(), START));
    }
    let (scheduler, _) = scheduler_from(file.clone(), Some(90));
    let written = scheduler.snapshot().to_file();
    for (name, record) in &file.runtime_state {
        assert_eq!(written.runtime_state.get(name), Some(record), "{name}");
    }
}

#[test]
fn a_model_that_is_not_the_pools_is_not_guarded() {
    let mut scheduler = scheduler();
    let foreign = Slot { key: KeyIndex(0), model: "text-embedding-v4".into() };
    assert_eq!(scheduler.count(&foreign, 1, &said(1_000), START), Default::default());
    let pick = Pick { slot: foreign.clone(), ..take(&mut scheduler) };
    scheduler.report_exhausted(&pick, "used up", START);
    scheduler.reset(&only(&foreign), false, START);
    assert_eq!(scheduler.count(&foreign, 1, &said(1_000), START).left, None);
}
