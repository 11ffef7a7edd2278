//! What a model cannot take: recognised in what DashScope says, remembered for a while, and held
//! against what a request needs (design section 11).
//!
//! A refusal is a limit only if it is a known sentence as a whole, and the request holds what the
//! sentence is about; anything else is the caller's own mistake.

mod book;
mod look;
mod needs;
mod parts;
mod sentence;
mod value;

use std::borrow::Cow;

pub(crate) use book::{Book, Fact, Fit, LIFE, Place};
#[cfg(test)]
pub(crate) use needs::UpperBound;
pub(crate) use needs::{Bounds, Lowered, Needs, Thinking};
pub(crate) use parts::{Media, Wire};
pub(crate) use sentence::Sentence;

/// What is done about a model's limit: `MODEL_LIMITS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModelLimits {
    /// It is learned, the request goes to another model, and an upper bound is lowered where
    /// nothing else helps.
    #[default]
    Adapt,
    /// As above, but a request is never changed.
    Move,
    /// The refusal passes, and nothing is learned.
    Off,
}

/// How hard to think, in all the words that any model knows.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// What a model cannot take, with what in a request it hangs on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// More tokens of output than this.
    MaxOutput { bound: u64, thinking: Thinking },
    /// More tokens of thinking than this; 0: no thinking.
    ThinkingBudget { bound: u64 },
    /// So little output that its own budget of thinking does not fit into it.
    DefaultBudget { bound: u64, thinking: Thinking },
    /// More tokens of input than this, which are not counted here: `smallest` is the smallest body
    /// that was refused, in bytes. Those of a picture are no measure for those of a text.
    MaxInput { bound: u64, smallest: usize, with_media: bool },
    /// What all of this is in.
    Media(Media),
    /// Contents that are lists of parts.
    Parts,
    /// Tools.
    Tools,
    /// A choice that forces a tool; `None`: whatever is said of thinking.
    ForcedTool { thinking: Option<Thinking> },
    /// This tool of DashScope's own.
    BuiltInTool(Box<str>),
    /// A wish not to think.
    ThinkingRequired,
    /// A word on thinking.
    ThinkingImpossible { thinking: Thinking },
    /// Thinking without a stream.
    ThinkingOnlyStreamed { thinking: Thinking },
    /// This word for how hard to think.
    Effort(Box<str>),
    /// A request without a stream.
    StreamsOnly,
    /// A spoken answer without a stream.
    SpeechOnlyStreamed,
    /// A stream that repeats itself; `None`: whatever is said of thinking.
    IncrementsOnly { thinking: Option<Thinking> },
    /// JSON and thinking together.
    JsonWithThinking { thinking: Thinking },
    /// Search.
    Search,
    /// This parameter.
    Parameter(Box<str>),
    /// Anybody who speaks but the user and the assistant.
    Roles,
    /// Anything, on this path.
    NotServed,
}

/// What a limit does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// The request has nothing to do with it.
    None,
    /// The model takes it if these numbers are lowered.
    Over(Bounds),
    /// The model refuses it.
    Refused,
}

/// A refusal that may be about a model's limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal<'a> {
    /// The HTTP status.
    pub status: u16,
    /// The whole message.
    pub message: &'a str,
    /// The model that the proxy chose.
    pub model: &'a str,
    /// Whether the path belongs to DashScope's own protocol.
    pub is_native: bool,
}

/// The limit that a refusal tells of. `needs`, those of the request as it was sent, are asked for
/// only if the words are those of one.
#[must_use]
pub(crate) fn recognise<'n>(
    refusal: Refusal<'_>,
    needs: impl FnOnce() -> Cow<'n, Needs>,
) -> Option<Limit> {
    let sentence = Sentence::read(refusal.message)?;
    let is_about_the_path = matches!(sentence, Sentence::NotServed(_) | Sentence::WrongUrl);
    if refusal.status != 400 && !(refusal.status == 404 && is_about_the_path) {
        return None;
    }
    let needs = needs();
    let limit = told(&sentence, refusal, &needs)?;
    (limit.effect(&needs) != Effect::None).then_some(limit)
}

/// The limit that a sentence tells of if the request holds what it is about.
fn told(sentence: &Sentence<'_>, refusal: Refusal<'_>, needs: &Needs) -> Option<Limit> {
    let thinking = needs.thinking;
    Some(match sentence {
        Sentence::MaxOutput(bound) => Limit::MaxOutput { bound: *bound, thinking },
        Sentence::MaxInput(bound) => {
            let (smallest, with_media) = (needs.size, !needs.media.is_empty());
            Limit::MaxInput { bound: *bound, smallest, with_media }
        }
        Sentence::ThinkingBudget(bound) => Limit::ThinkingBudget { bound: *bound },
        Sentence::BudgetOverOutput(bound) => Limit::DefaultBudget { bound: *bound, thinking },
        Sentence::ThinkingNeedsStream => Limit::ThinkingOnlyStreamed { thinking },
        Sentence::OnlyThinks => Limit::ThinkingRequired,
        Sentence::NeverThinks => Limit::ThinkingImpossible { thinking },
        Sentence::Effort(known) => {
            let asked = needs.effort.as_deref().filter(|asked| EFFORTS.contains(asked))?;
            let is_new = !known.contains(&asked);
            is_new.then(|| Limit::Effort(asked.into()))?
        }
        Sentence::ThinkingNeedsIncrements => Limit::IncrementsOnly { thinking: Some(thinking) },
        Sentence::NoTools => Limit::Tools,
        Sentence::NoForcedTool { in_thinking: false } => Limit::ForcedTool { thinking: None },
        Sentence::NoForcedTool { in_thinking: true } if thinking == Thinking::Off => return None,
        Sentence::NoForcedTool { in_thinking: true } => {
            Limit::ForcedTool { thinking: Some(thinking) }
        }
        Sentence::NoBuiltInTool(tool) => Limit::BuiltInTool((*tool).into()),
        Sentence::NoJsonInThinking => Limit::JsonWithThinking { thinking },
        Sentence::NoSearch => Limit::Search,
        Sentence::NoParameter(name) => Limit::Parameter((*name).into()),
        Sentence::OnlyStreams => Limit::StreamsOnly,
        Sentence::SpeechNeedsStream => Limit::SpeechOnlyStreamed,
        Sentence::OnlyIncrements => Limit::IncrementsOnly { thinking: None },
        Sentence::OnlyTwoRoles => Limit::Roles,
        // A name that the proxy did not choose stands there for a reason that is not the model's.
        Sentence::NotServed(model) => (*model == refusal.model).then_some(Limit::NotServed)?,
        Sentence::WrongUrl => refusal.is_native.then_some(Limit::NotServed)?,
        // The same words are for a part that no model knows.
        Sentence::OddPart | Sentence::OnlyTexts if needs.has_odd_parts => return None,
        Sentence::OddPart => Limit::Media(needs.media),
        Sentence::OnlyTexts if needs.media.is_empty() => Limit::Parts,
        Sentence::OnlyTexts => Limit::Media(needs.media),
    })
}

impl Limit {
    /// What it does to a request.
    #[must_use]
    pub(crate) fn effect(&self, needs: &Needs) -> Effect {
        let holds = match self {
            Self::MaxOutput { bound, thinking } => {
                let is_over = needs.most_output() > Some(*bound) && needs.thinking == *thinking;
                let bounds = Bounds { output: Some(*bound), budget: None };
                return if is_over { Effect::Over(bounds) } else { Effect::None };
            }
            Self::ThinkingBudget { bound: 0 } => {
                needs.most_budget().is_some() || needs.thinking == Thinking::On
            }
            Self::ThinkingBudget { bound } => {
                let bounds = Bounds { output: None, budget: Some(*bound) };
                let is_over = needs.most_budget() > Some(*bound);
                return if is_over { Effect::Over(bounds) } else { Effect::None };
            }
            Self::DefaultBudget { bound, thinking } => {
                needs.budgets.is_empty()
                    && needs.most_output().is_some_and(|output| output <= *bound)
                    && *thinking == needs.thinking
                    && *thinking != Thinking::Off
            }
            Self::MaxInput { smallest, with_media, .. } => {
                needs.size >= *smallest && *with_media != needs.media.is_empty()
            }
            Self::Media(media) => !media.is_empty() && needs.media.holds(*media),
            Self::Parts => needs.has_parts,
            Self::Tools => needs.has_tools,
            Self::ForcedTool { thinking } => {
                needs.forces_tool && thinking.is_none_or(|thinking| thinking == needs.thinking)
            }
            Self::BuiltInTool(tool) => needs.built_in_tools.contains(&**tool),
            Self::ThinkingRequired => needs.thinking == Thinking::Off,
            Self::ThinkingImpossible { thinking } => {
                *thinking == needs.thinking && *thinking != Thinking::Unsaid
            }
            Self::ThinkingOnlyStreamed { thinking } => {
                !needs.is_streamed && *thinking == needs.thinking && *thinking != Thinking::Off
            }
            Self::Effort(word) => needs.effort.as_deref() == Some(&**word),
            Self::StreamsOnly => !needs.is_streamed,
            Self::SpeechOnlyStreamed => !needs.is_streamed && needs.wants_speech,
            Self::IncrementsOnly { thinking: None } => needs.increments != Some(true),
            Self::IncrementsOnly { thinking: Some(thinking) } => {
                needs.increments != Some(true)
                    && *thinking == needs.thinking
                    && *thinking != Thinking::Off
            }
            Self::JsonWithThinking { thinking } => {
                needs.wants_json && *thinking == needs.thinking && *thinking != Thinking::Off
            }
            Self::Search => needs.searches,
            Self::Parameter(name) => needs.parameters.contains(&**name),
            Self::Roles => needs.has_other_roles,
            Self::NotServed => true,
        };
        if holds { Effect::Refused } else { Effect::None }
    }

    /// Whether a model that is known to refuse this is better not asked again at all: some say
    /// 200 to a picture that they never saw.
    #[must_use]
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Media(_))
    }

    /// Whether a model with this limit takes more of the same than one with the other.
    #[must_use]
    pub(crate) fn is_more_generous(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.bound() > other.bound()
    }

    /// The number that it names, in tokens.
    #[must_use]
    pub(crate) fn bound(&self) -> Option<u64> {
        match self {
            Self::MaxOutput { bound, .. }
            | Self::ThinkingBudget { bound }
            | Self::DefaultBudget { bound, .. }
            | Self::MaxInput { bound, .. } => Some(*bound),
            _ => None,
        }
    }

    /// Its name in the log, in the metrics and on the status page.
    #[must_use]
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::MaxOutput { .. } => "max_output",
            Self::ThinkingBudget { .. } => "thinking_budget",
            Self::DefaultBudget { .. } => "default_thinking_budget",
            Self::MaxInput { .. } => "max_input",
            Self::Media(_) => "media",
            Self::Parts => "content_parts",
            Self::Tools => "tools",
            Self::ForcedTool { .. } => "forced_tool_choice",
            Self::BuiltInTool(_) => "built_in_tool",
            Self::ThinkingRequired => "thinking_required",
            Self::ThinkingImpossible { .. } => "thinking_impossible",
            Self::ThinkingOnlyStreamed { .. } => "thinking_only_streamed",
            Self::Effort(_) => "reasoning_effort",
            Self::StreamsOnly => "streams_only",
            Self::SpeechOnlyStreamed => "speech_only_streamed",
            Self::IncrementsOnly { .. } => "increments_only",
            Self::JsonWithThinking { .. } => "json_with_thinking",
            Self::Search => "search",
            Self::Parameter(_) => "parameter",
            Self::Roles => "roles",
            Self::NotServed => "not_served",
        }
    }

    /// What in a request it hangs on besides its kind, in words of the log; empty if nothing.
    #[must_use]
    pub(crate) fn hangs_on(&self) -> String {
        match self {
            Self::MaxOutput { thinking, .. }
            | Self::DefaultBudget { thinking, .. }
            | Self::ThinkingImpossible { thinking }
            | Self::ThinkingOnlyStreamed { thinking }
            | Self::JsonWithThinking { thinking }
            | Self::ForcedTool { thinking: Some(thinking) }
            | Self::IncrementsOnly { thinking: Some(thinking) } => {
                format!("thinking:{}", thinking.name())
            }
            Self::MaxInput { smallest, with_media: false, .. } => format!("bytes:{smallest}"),
            Self::MaxInput { smallest, with_media: true, .. } => format!("bytes:{smallest},media"),
            Self::Media(media) => media.names(),
            Self::BuiltInTool(name) | Self::Effort(name) | Self::Parameter(name) => {
                name.to_string()
            }
            _ => String::new(),
        }
    }

    /// Whether both are about the same, whatever their numbers.
    #[must_use]
    fn is_like(&self, other: &Self) -> bool {
        match (self, other) {
            (
                Self::MaxOutput { thinking: one, .. } | Self::DefaultBudget { thinking: one, .. },
                Self::MaxOutput { thinking: two, .. } | Self::DefaultBudget { thinking: two, .. },
            ) => self.kind() == other.kind() && one == two,
            (Self::ThinkingBudget { .. }, Self::ThinkingBudget { .. }) => true,
            (Self::MaxInput { with_media: one, .. }, Self::MaxInput { with_media: two, .. }) => {
                one == two
            }
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests;
