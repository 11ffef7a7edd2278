//! What a model cannot take, in DashScope's words and framings (facts, `limits.md` sections 1
//! and 4).

use serde_json::{Value, json};

use super::answers::{self, Question, Surface};
use super::output::Output;
use super::script::{Framing, Script};
use super::shapes;

/// Something that a model refuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// More tokens of output than this.
    MaxOutput(u64),
    /// The same, only with thinking switched on.
    MaxOutputThinking(u64),
    /// More tokens of thinking than this; 0: none at all.
    ThinkingBudget(u64),
    /// Fewer tokens of output than it thinks by default.
    DefaultBudget(u64),
    /// A longer input than this, in tokens of four bytes.
    MaxInput(u64),
    /// Everything but text in a message.
    TextOnly,
    /// Contents that are lists of parts.
    OnlyStrings,
    /// Tools.
    NoTools,
    /// A choice that forces a tool, while it thinks.
    NoForcedToolInThinking,
    /// A choice that forces a tool.
    NoForcedTool,
    /// This tool of DashScope's own.
    NoBuiltInTool(&'static str),
    /// Thinking, which is its default, without a stream.
    ThinkingNeedsStream,
    /// To be asked not to think.
    OnlyThinks,
    /// Any word on thinking.
    NeverThinks,
    /// Any word for how hard to think but these.
    Efforts(&'static [&'static str]),
    /// Streams that repeat themselves, while it thinks.
    ThinkingNeedsIncrements,
    /// Streams that repeat themselves.
    OnlyIncrements,
    /// JSON, while it thinks.
    NoJsonInThinking,
    /// Search.
    NoSearch,
    /// This parameter.
    NoParameter(&'static str),
    /// Requests without a stream.
    OnlyStreams,
    /// A spoken answer without a stream.
    SpeechNeedsStream,
    /// Any role but the user's and the assistant's.
    OnlyTwoRoles,
    /// Paths that end so.
    NotServed(&'static str),
}

/// What the gateway puts before the sentence on some paths and days.
const PREFIX: &str = "<400> InternalError.Algo.InvalidParameter: ";

/// The refusal of what the model cannot take, if the request holds it.
pub(super) fn refusal(question: &Question<'_>, script: &Script) -> Option<Output> {
    let model = question.model?;
    let limits = script.limits_of(model);
    if limits.is_empty() || !question.key.is_some_and(|key| script.knows_key(key)) {
        return None;
    }
    let asked = Asked::of(question);
    let (status, sentence) = limits.iter().find_map(|limit| limit.sentence(&asked, model))?;
    Some(framed(question, &asked, status, &sentence))
}

/// A request as far as a limit hangs on it.
struct Asked<'a> {
    body: Value,
    path: &'a str,
    is_streamed: bool,
    size: u64,
}

impl<'a> Asked<'a> {
    fn of(question: &Question<'a>) -> Self {
        let body: Value = serde_json::from_slice(&question.request.body).unwrap_or_default();
        let header = |name| question.request.header(name).unwrap_or_default();
        let path = question.request.path();
        let is_streamed = if path.starts_with("/api/v1/") {
            header("x-dashscope-sse").eq_ignore_ascii_case("enable")
                || header("accept").contains("text/event-stream")
        } else {
            body["stream"] == true
        };
        Self { size: question.request.body.len() as u64, body, path, is_streamed }
    }

    /// A parameter, wherever the protocol has it.
    fn parameter(&self, name: &str) -> &Value {
        let own = &self.body["parameters"][name];
        if own.is_null() { &self.body[name] } else { own }
    }

    fn output(&self) -> u64 {
        let names = ["max_tokens", "max_completion_tokens", "max_output_tokens"];
        names.iter().filter_map(|name| self.parameter(name).as_u64()).max().unwrap_or(0)
    }

    fn budget(&self) -> Option<u64> {
        let budgets = [self.parameter("thinking_budget"), &self.body["thinking"]["budget_tokens"]];
        budgets.into_iter().find_map(Value::as_u64)
    }

    /// Whether it says that the model is to think.
    fn thinks(&self) -> Option<bool> {
        let kind = self.body["thinking"]["type"].as_str().map(|kind| kind != "disabled");
        self.parameter("enable_thinking").as_bool().or(kind)
    }

    fn may_think(&self) -> bool {
        self.thinks() != Some(false)
    }

    fn effort(&self) -> Option<&str> {
        let efforts = [
            self.parameter("reasoning_effort"),
            &self.body["reasoning"]["effort"],
            &self.body["output_config"]["effort"],
        ];
        efforts.into_iter().find_map(Value::as_str)
    }

    fn forces_tool(&self) -> bool {
        let choice = self.parameter("tool_choice");
        let kind = choice.as_str().or(choice["type"].as_str());
        kind.is_some_and(|kind| !["auto", "none"].contains(&kind))
    }

    fn tools(&self) -> &[Value] {
        self.parameter("tools").as_array().map_or(&[], Vec::as_slice)
    }

    fn wants_json(&self) -> bool {
        let kinds =
            [&self.parameter("response_format")["type"], &self.body["text"]["format"]["type"]];
        kinds.into_iter().filter_map(Value::as_str).any(|kind| kind.starts_with("json"))
    }

    fn messages(&self) -> &[Value] {
        let lists = [&self.body["messages"], &self.body["input"]["messages"], &self.body["input"]];
        lists.into_iter().find_map(Value::as_array).map_or(&[], Vec::as_slice)
    }

    fn contents(&self) -> impl Iterator<Item = &Value> {
        self.messages().iter().flat_map(|message| [&message["content"], &message["output"]])
    }

    fn has_other_roles(&self) -> bool {
        let is_other =
            |message: &Value| !["user", "assistant"].map(Value::from).contains(&message["role"]);
        !self.body["system"].is_null() || self.messages().iter().any(is_other)
    }
}

/// Whether a part, or one inside of it, is no text.
fn is_no_text(part: &Value) -> bool {
    let kinds = ["text", "input_text", "output_text", "tool_use", "tool_result", "thinking"];
    let kind = part["type"].as_str();
    let is_text = kind.map_or(part["text"].is_string(), |kind| kinds.contains(&kind));
    !is_text || part["content"].as_array().is_some_and(|parts| parts.iter().any(is_no_text))
}

impl Limit {
    /// The status and the sentence with which it refuses.
    fn sentence(&self, asked: &Asked<'_>, model: &str) -> Option<(u16, String)> {
        let increments = asked.parameter("incremental_output") == true;
        let (is_met, sentence) = match self {
            Self::MaxOutput(most) => {
                (asked.output() > *most, format!("Range of max_tokens should be [1, {most}]"))
            }
            Self::MaxOutputThinking(most) => (
                asked.output() > *most && asked.thinks() == Some(true),
                format!("Range of max_tokens should be [1, {most}]"),
            ),
            Self::ThinkingBudget(most) => (
                asked.budget().is_some_and(|budget| budget > *most)
                    || *most == 0 && asked.thinks() == Some(true),
                format!(
                    "The thinking_budget parameter must be a positive integer and not greater than {most}"
                ),
            ),
            Self::DefaultBudget(budget) => (
                asked.may_think()
                    && asked.budget().is_none()
                    && (1..=*budget).contains(&asked.output()),
                format!(
                    "max_completion_tokens [{}] must be greater than thinking_budget [{budget}]",
                    asked.output()
                ),
            ),
            Self::MaxInput(most) => {
                (asked.size / 4 > *most, format!("Range of input length should be [1, {most}]"))
            }
            Self::NoBuiltInTool(tool) => (
                asked.tools().iter().any(|it| it["type"] == *tool),
                format!("The current model does not support the {tool} tool."),
            ),
            Self::NeverThinks => (
                asked.thinks().is_some(),
                format!("The model {model} does not support enable_thinking."),
            ),
            Self::Efforts(known) => (
                asked.effort().is_some_and(|effort| !known.contains(&effort)),
                format!("'reasoning_effort' must be one of: '{}'", known.join("', '")),
            ),
            Self::NoParameter(name) => (
                !asked.parameter(name).is_null(),
                format!("The parameters `{name}` is not supported."),
            ),
            Self::NotServed(end) => {
                let sentence =
                    format!("Unsupported model `{model}` for OpenAI compatibility mode.");
                return asked.path.ends_with(end).then_some((404, sentence));
            }
            _ => {
                let (is_met, sentence) = self.plain(asked, increments);
                (is_met, sentence.to_owned())
            }
        };
        is_met.then_some((400, sentence))
    }

    /// Those whose sentence names nothing.
    fn plain(&self, asked: &Asked<'_>, increments: bool) -> (bool, &'static str) {
        match self {
            Self::TextOnly => (
                asked.contents().filter_map(Value::as_array).flatten().any(is_no_text),
                "The provided messages input is invalid. The error info is [Unexpected item type in content.]",
            ),
            Self::OnlyStrings => (
                asked.contents().any(Value::is_array),
                "The content field's type should be `str` in messages.",
            ),
            Self::NoTools => (!asked.tools().is_empty(), "The tool call is not supported."),
            Self::NoForcedToolInThinking => (
                asked.forces_tool() && asked.may_think(),
                "The tool_choice parameter does not support being set to required or object in thinking mode",
            ),
            Self::NoForcedTool => (
                asked.forces_tool(),
                "The tool_choice parameter does not support being set to required or object",
            ),
            Self::ThinkingNeedsStream => (
                asked.may_think() && !asked.is_streamed,
                "parameter.enable_thinking must be set to false for non-streaming calls",
            ),
            Self::OnlyThinks => (
                asked.thinks() == Some(false),
                "The value of the enable_thinking parameter is restricted to True.",
            ),
            Self::ThinkingNeedsIncrements => (
                asked.may_think() && !increments,
                "The incremental_output parameter must be \"true\" when enable_thinking is true",
            ),
            Self::OnlyIncrements => {
                (!increments, "This model only supports incremental_output set to True.")
            }
            Self::NoJsonInThinking => (
                asked.wants_json() && asked.may_think(),
                "Json mode response is not supported when enable_thinking is true",
            ),
            Self::NoSearch => (
                asked.parameter("enable_search") == true,
                "This model does not support enable_search.",
            ),
            Self::OnlyStreams => (
                !asked.is_streamed,
                "This model only support stream mode, please enable the stream parameter to access the model. ",
            ),
            Self::SpeechNeedsStream => (
                !asked.is_streamed
                    && asked.parameter("modalities").to_string().contains("\"audio\""),
                "'audio' output only support with stream=true",
            ),
            Self::OnlyTwoRoles => (asked.has_other_roles(), "Role must be in [user, assistant]."),
            _ => (false, ""),
        }
    }
}

/// The refusal as the path frames it.
fn framed(question: &Question<'_>, asked: &Asked<'_>, status: u16, sentence: &str) -> Output {
    const JSON: &str = "application/json";
    const STREAM: &str = "text/event-stream;charset=UTF-8";
    let (id, code) = (question.id, "InvalidParameter");
    let nested = |code: &str| {
        json!({"error": {"code": code, "param": null, "message": sentence, "type": "invalid_request_error"},
               "id": format!("chatcmpl-{id}"), "request_id": id})
    };
    let surface = Surface::of("POST", asked.path);
    let (kind, body) = match surface {
        _ if status == 404 => (JSON, nested("model_not_supported").to_string()),
        Surface::Messages if asked.is_streamed => {
            let said = shapes::flat(code, &format!("{PREFIX}{sentence}"), id);
            (STREAM, format!("event:error\ndata:{said}\n\n"))
        }
        Surface::Messages => (JSON, shapes::flat(code, sentence, id)),
        Surface::Native if asked.is_streamed => {
            let said = shapes::native(code, &format!("{PREFIX}{sentence}"), id);
            (STREAM, format!("id:1\nevent:error\n:HTTP_STATUS/400\ndata:{said}\n\n"))
        }
        Surface::Native => (JSON, shapes::native(code, sentence, id)),
        Surface::Chat if asked.is_streamed => {
            (STREAM, format!("data: {}\n\n", nested("invalid_parameter_error")))
        }
        _ => (JSON, nested("invalid_parameter_error").to_string()),
    };
    let headers = answers::gateway_headers(question, kind, false);
    Output::whole(status, headers, body.into_bytes(), Framing::Chunked)
}
