//! Which key made an identifier: tasks, files and stored responses exist for that key only.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::{KeyIndex, RuntimeRecord, Scheduler, StateFile, Timestamp};

/// What the runtime record of an identifier begins with.
const PREFIX: &str = "pin:";

/// How long an identifier is remembered, and how many of them.
const REMEMBERED_FOR: Duration = Duration::from_secs(48 * 3_600);
const MOST: usize = 500;

/// The identifiers and their keys' hashes. Shared, so that a snapshot costs nothing.
#[derive(Clone, Debug, Default)]
pub(super) struct Pins(Arc<BTreeMap<String, Pin>>);

#[derive(Clone, Debug)]
struct Pin {
    key_hash: String,
    since: Timestamp,
}

impl Pins {
    /// Takes the identifiers out of a file.
    pub(super) fn take(file: &mut StateFile) -> Self {
        let mut pins = BTreeMap::new();
        file.runtime_state.retain(|name, record| match name.strip_prefix(PREFIX) {
            Some(id) => {
                let pin = Pin { key_hash: record.value.clone(), since: record.updated_at };
                pins.insert(id.to_owned(), pin);
                false
            }
            None => true,
        });
        Self(Arc::new(pins))
    }

    /// Puts them back.
    pub(super) fn put(&self, file: &mut StateFile) {
        for (id, pin) in &*self.0 {
            let record = RuntimeRecord::new(pin.key_hash.clone(), pin.since);
            file.runtime_state.insert(format!("{PREFIX}{id}"), record);
        }
    }

    fn add(&mut self, id: String, key_hash: &str, now: Timestamp) {
        let pins = Arc::make_mut(&mut self.0);
        pins.insert(id, Pin { key_hash: key_hash.to_owned(), since: now });
        pins.retain(|_, pin| now.since(pin.since) <= REMEMBERED_FOR);
        if pins.len() > MOST {
            // What the future left behind (a clock that was ahead for a while) would outlive all.
            let age = |pin: &Pin| (pin.since <= now, pin.since);
            let oldest = pins.iter().min_by_key(|(_, pin)| age(pin)).map(|(id, _)| id.clone());
            oldest.map(|id| pins.remove(&id));
        }
    }
}

impl Scheduler {
    /// Remembers which key made these identifiers. With one key there is nothing to remember.
    /// Says whether there is something to write.
    pub(crate) fn pin(&mut self, ids: Vec<String>, key: KeyIndex, now: Timestamp) -> bool {
        if ids.is_empty() || self.pool.key_count() < 2 {
            return false;
        }
        let key_hash = self.pool.key_hash(key).to_owned();
        ids.into_iter().for_each(|id| self.pins.add(id, &key_hash, now));
        self.change();
        self.cooled = self.revision;
        true
    }

    /// Whether any identifier is remembered.
    #[must_use]
    pub(crate) fn has_pins(&self) -> bool {
        !self.pins.0.is_empty()
    }

    /// The key that made this identifier, if it is remembered and still configured.
    #[must_use]
    pub(crate) fn pinned_key(&self, id: &str, now: Timestamp) -> Option<KeyIndex> {
        let pin = self.pins.0.get(id).filter(|pin| now.since(pin.since) <= REMEMBERED_FOR)?;
        self.pool.key_with_hash(&pin.key_hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::pool::Pool;

    const START: Timestamp = Timestamp(1_700_000_000_000);

    fn scheduler(keys: usize, file: StateFile) -> Scheduler {
        let keys = (1..=keys).map(|n| format!("k{n}")).collect();
        let pool = Arc::new(Pool::new(keys, vec!["m".into()]));
        Scheduler::new(pool, Duration::from_secs(1), file, START)
    }

    fn ids(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn an_identifier_leads_to_its_key_for_two_days_and_over_a_restart() {
        let mut before = scheduler(2, StateFile::default());
        assert!(before.pin(ids(&["task-1"]), KeyIndex(1), START));
        let after = scheduler(2, before.snapshot().to_file());
        for scheduler in [&before, &after] {
            let last = START.plus(REMEMBERED_FOR);
            assert_eq!(scheduler.pinned_key("task-1", last), Some(KeyIndex(1)));
            assert_eq!(scheduler.pinned_key("task-1", Timestamp(last.0 + 1)), None);
            assert_eq!(scheduler.pinned_key("task-2", START), None);
        }
    }

    #[test]
    fn the_newest_five_hundred_are_remembered() {
        let mut scheduler = scheduler(2, StateFile::default());
        for n in 0..600 {
            scheduler.pin(ids(&[&format!("task-{n}")]), KeyIndex(0), Timestamp(START.0 + n));
        }
        let remembered = |n: u64| scheduler.pinned_key(&format!("task-{n}"), START).is_some();
        assert!(!remembered(99) && remembered(100) && remembered(599));
        let file = scheduler.snapshot().to_file();
        let pins = file.runtime_state.keys().filter(|name| name.starts_with(PREFIX));
        assert_eq!(pins.count(), MOST);
    }

    #[test]
    fn identifiers_of_a_clock_that_was_ahead_make_room_for_new_ones() {
        let mut scheduler = scheduler(2, StateFile::default());
        let ahead = START.plus(Duration::from_secs(365 * 86_400));
        for n in 0..MOST {
            scheduler.pin(ids(&[&format!("task-{n}")]), KeyIndex(0), ahead);
        }
        scheduler.pin(ids(&["new"]), KeyIndex(1), START);
        assert_eq!(scheduler.pinned_key("new", START), Some(KeyIndex(1)));
    }

    #[test]
    fn nothing_is_remembered_with_a_single_key() {
        let mut scheduler = scheduler(1, StateFile::default());
        assert!(!scheduler.pin(ids(&["task-1"]), KeyIndex(0), START));
        assert_eq!(scheduler.pinned_key("task-1", START), None);
    }

    #[test]
    fn a_key_that_is_no_longer_configured_leads_nowhere() {
        let mut before = scheduler(3, StateFile::default());
        before.pin(ids(&["task-1"]), KeyIndex(2), START);
        let after = scheduler(2, before.snapshot().to_file());
        assert_eq!(after.pinned_key("task-1", START), None);
    }
}
