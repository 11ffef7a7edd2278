//! What a request needs of a model, as far as a limit may hang on it.
//!
//! Found in one pass over the body, and only when a limit is known or a refusal has come: no
//! tree is built, and nothing long is kept. What stands where no protocol has it is not seen.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;

use super::look;
use super::parts::{Media, Wire};

/// Whether the model is asked to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Thinking {
    /// The request does not say: the model's default counts.
    #[default]
    Unsaid,
    /// It is.
    On,
    /// It is asked not to.
    Off,
}

impl Thinking {
    /// Its name in the log and on the status page.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Unsaid => "unsaid",
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// A number in the body that bounds what the model may do, so that lowering it takes nothing away
/// that the model could give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UpperBound {
    /// The member that holds it.
    pub name: &'static str,
    /// The number.
    pub value: u64,
    /// Where its digits stand in the body.
    pub span: Range<usize>,
}

/// What is lowered for a model; `None` = as it was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Tokens of output.
    pub output: Option<u64>,
    /// Tokens of thinking.
    pub budget: Option<u64>,
}

impl Bounds {
    /// Whether the request goes out as it was sent.
    #[must_use]
    pub(crate) fn is_none(self) -> bool {
        self == Self::default()
    }

    /// Both, where the lower number counts.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        let lower = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).min();
        Self { output: lower(self.output, other.output), budget: lower(self.budget, other.budget) }
    }
}

/// One number of the body that is replaced by a lower one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lowered {
    /// The member that holds it.
    pub name: &'static str,
    /// Where its digits stand in the body.
    pub span: Range<usize>,
    /// What takes their place.
    pub value: u64,
}

/// What a request needs of a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    /// How many tokens of output it allows: `max_tokens` and its like.
    pub outputs: Vec<UpperBound>,
    /// How many tokens of thinking it allows.
    pub budgets: Vec<UpperBound>,
    /// Whether it wants thinking.
    pub thinking: Thinking,
    /// How hard to think, in the client's word.
    pub effort: Option<String>,
    /// Whether its answer is a stream.
    pub is_streamed: bool,
    /// `incremental_output`, if it is said.
    pub increments: Option<bool>,
    /// Whether it brings tools.
    pub has_tools: bool,
    /// The types of those tools that are no functions.
    pub built_in_tools: BTreeSet<String>,
    /// Whether its choice of a tool forces one.
    pub forces_tool: bool,
    /// Whether the answer has to be JSON.
    pub wants_json: bool,
    /// Whether the model has to search.
    pub searches: bool,
    /// Whether the answer has to be spoken.
    pub wants_speech: bool,
    /// What its messages hold besides text.
    pub media: Media,
    /// Whether a message's content is a list of parts.
    pub has_parts: bool,
    /// Whether a part of a message is of no known type, or malformed.
    pub has_odd_parts: bool,
    /// Whether anybody speaks but the user and the assistant.
    pub has_other_roles: bool,
    /// The names of its parameters, as far as they are short.
    pub parameters: BTreeSet<String>,
    /// How long the body is, in bytes.
    pub size: usize,
}

impl Needs {
    /// What a body needs that goes to a path of this wire format. What cannot be read is not
    /// there: whoever asks has read it as JSON already.
    #[must_use]
    pub(crate) fn of(body: &[u8], wire: Wire, is_streamed: bool) -> Self {
        let mut needs = Self { is_streamed, size: body.len(), ..Self::default() };
        if let Ok(text) = std::str::from_utf8(body) {
            look::over(text, wire, &mut needs);
        }
        needs
    }

    /// The largest number of output tokens that it allows.
    #[must_use]
    pub(crate) fn most_output(&self) -> Option<u64> {
        self.outputs.iter().map(|bound| bound.value).max()
    }

    /// The largest number of thinking tokens that it allows.
    #[must_use]
    pub(crate) fn most_budget(&self) -> Option<u64> {
        self.budgets.iter().map(|bound| bound.value).max()
    }

    /// The numbers that have to be replaced so that these bounds hold.
    ///
    /// A thinking budget that fitted under the output and no longer does becomes half of it, so
    /// that there is room for an answer.
    #[must_use]
    pub(crate) fn lowered(&self, bounds: Bounds) -> Vec<Lowered> {
        let sent = self.outputs.iter().map(|bound| bound.value).min();
        let outputs = self.outputs.iter().filter_map(|it| it.lowered_to(bounds.output?));
        let left = sent.zip(bounds.output).filter(|(sent, bound)| bound < sent);
        let budgets = self.budgets.iter().filter_map(|it| {
            let budget = it.value.min(bounds.budget.unwrap_or(u64::MAX));
            let fits = left.is_none_or(|(sent, bound)| it.value >= sent || budget < bound);
            let half = left.map_or(budget, |(_, bound)| (bound / 2).max(1));
            it.lowered_to(if fits { budget } else { half })
        });
        outputs.chain(budgets).collect()
    }

    /// What is needed of a model by the request as it goes out with these bounds.
    #[must_use]
    pub(crate) fn as_sent(&self, bounds: Bounds) -> Cow<'_, Self> {
        if bounds.is_none() {
            return Cow::Borrowed(self);
        }
        let mut sent = self.clone();
        for edit in self.lowered(bounds) {
            let all = sent.outputs.iter_mut().chain(&mut sent.budgets);
            let edited = all.filter(|it| it.name == edit.name && it.span == edit.span);
            edited.for_each(|it| it.value = edit.value);
        }
        Cow::Owned(sent)
    }
}

impl UpperBound {
    /// The edit that lowers it, if it is above `bound`.
    fn lowered_to(&self, bound: u64) -> Option<Lowered> {
        let (name, span) = (self.name, self.span.clone());
        (self.value > bound).then_some(Lowered { name, span, value: bound })
    }
}

#[cfg(test)]
mod tests;
