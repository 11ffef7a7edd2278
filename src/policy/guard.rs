//! When a slot is left before DashScope could bill it (design section 12).

/// How many tokens the free quota of each model had; 0 = unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quotas {
    /// That of a model without an exception.
    pub usual: u64,
    /// Those of others, with their ids; no model twice.
    pub exceptions: Vec<(String, u64)>,
}

impl Quotas {
    /// The free quota of a model, if it is known.
    #[must_use]
    pub fn of(&self, model: &str) -> Option<u64> {
        let exception = self.exceptions.iter().find(|(known, _)| known == model);
        let quota = exception.map_or(self.usual, |(_, quota)| *quota);
        Some(quota).filter(|quota| *quota > 0)
    }
}

/// The guard: at which share of its free quota a slot is left.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    /// What each model has.
    pub quotas: Quotas,
    /// The share, in percent; `None` = nothing is guarded.
    pub percent: Option<u8>,
}

impl Guard {
    /// Whether anything is guarded.
    #[must_use]
    pub(crate) fn is_on(&self) -> bool {
        self.percent.is_some()
    }

    /// With how many tokens a model's slot is left; `None` = never.
    #[must_use]
    pub(crate) fn limit(&self, model: &str) -> Option<u64> {
        let share = u128::from(self.quotas.of(model)?) * u128::from(self.percent?);
        Some(u64::try_from(share.div_ceil(100)).unwrap_or(u64::MAX))
    }

    /// Why such a slot was left, for people and for the state file.
    #[must_use]
    pub(crate) fn reason(&self, model: &str) -> String {
        let (percent, quota) = (self.percent.unwrap_or(0), self.quotas.of(model).unwrap_or(0));
        format!("left at {percent} % of {} tokens, by QUOTA_GUARD", grouped(quota))
    }
}

/// A number with a comma after every three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups = groups.map(|group| group.iter().map(|digit| char::from(*digit)).collect());
    groups.collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(usual: u64, percent: Option<u8>) -> Guard {
        let exceptions = [("pictures".to_owned(), 0), ("small".to_owned(), 7)].to_vec();
        Guard { quotas: Quotas { usual, exceptions }, percent }
    }

    #[test]
    fn the_limit_is_the_share_rounded_up() {
        for (usual, percent, limit) in [
            (1_000_000, 90, 900_000),
            (100, 1, 1),
            (7, 50, 4),
            (1, 1, 1),
            (u64::MAX, 100, u64::MAX),
        ] {
            assert_eq!(guard(usual, Some(percent)).limit("m"), Some(limit), "{usual} {percent}");
        }
        assert_eq!(guard(100, Some(100)).limit("small"), Some(7));
    }

    #[test]
    fn what_is_unknown_or_off_has_no_limit() {
        assert_eq!(guard(100, Some(90)).limit("pictures"), None);
        assert_eq!(guard(0, Some(90)).limit("m"), None);
        assert_eq!(guard(100, None).limit("m"), None);
    }

    #[test]
    fn the_reason_names_share_quota_and_setting() {
        let reason = guard(1_000_000, Some(90)).reason("m");
        assert_eq!(reason, "left at 90 % of 1,000,000 tokens, by QUOTA_GUARD");
        assert_eq!(
            [0, 12, 999, 1000, 12_345_678].map(grouped),
            ["0", "12", "999", "1,000", "12,345,678"]
        );
    }
}
