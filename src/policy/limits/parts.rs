//! The parts of messages: which are known, and what they hold besides text.

/// How a path writes its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    /// OpenAI's chat (and its older completions).
    Chat,
    /// OpenAI's responses.
    Responses,
    /// Anthropic's messages.
    Messages,
    /// DashScope's own.
    Native,
}

/// A set of what a message may hold besides text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Media(u8);

impl Media {
    pub(crate) const IMAGE: Self = Self(1);
    pub(crate) const AUDIO: Self = Self(2);
    pub(crate) const VIDEO: Self = Self(4);
    pub(crate) const FILE: Self = Self(8);

    const NAMES: [(Self, &'static str); 4] = [
        (Self::IMAGE, "image"),
        (Self::AUDIO, "audio"),
        (Self::VIDEO, "video"),
        (Self::FILE, "file"),
    ];

    /// Whether there is nothing in it.
    #[must_use]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub(crate) fn holds(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both together.
    #[must_use]
    pub(crate) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The name of each that is in it, with a plus between them.
    #[must_use]
    pub(crate) fn names(self) -> String {
        let names = Self::NAMES.iter().filter(|(one, _)| self.holds(*one));
        names.map(|(_, name)| *name).collect::<Vec<_>>().join("+")
    }
}

/// A part of a message, as far as it has been looked at.
#[derive(Debug, Default)]
pub(super) struct Part {
    /// Its `type`.
    pub(super) kind: Option<String>,
    /// Those of its members that are well formed and hold a text or a medium, or say where one is.
    pub(super) sources: Vec<&'static str>,
    /// Those that should be and are not.
    pub(super) broken: Vec<&'static str>,
}

/// A member in which a part has its text or its medium, and how it is written there.
#[derive(Clone, Copy, Debug)]
pub(super) struct Source {
    /// Its name.
    pub(super) member: &'static str,
    /// Whether it may be a text.
    pub(super) is_text: bool,
    /// Whether it may be a list of texts.
    pub(super) is_list: bool,
    /// The members of which an object needs one.
    pub(super) places: &'static [&'static str],
}

#[rustfmt::skip]
const SOURCES: [Source; 13] = [
    Source { member: "text", is_text: true, is_list: false, places: &[] },
    Source { member: "image_url", is_text: true, is_list: false, places: &["url"] },
    Source { member: "video_url", is_text: true, is_list: false, places: &["url"] },
    Source { member: "audio_url", is_text: true, is_list: false, places: &["url"] },
    Source { member: "input_audio", is_text: true, is_list: false, places: &["data"] },
    Source { member: "image", is_text: true, is_list: false, places: &[] },
    Source { member: "audio", is_text: true, is_list: false, places: &[] },
    Source { member: "video", is_text: true, is_list: true, places: &[] },
    Source { member: "file", is_text: true, is_list: false, places: &["file_id", "file_data", "file_url", "url"] },
    Source { member: "file_id", is_text: true, is_list: false, places: &[] },
    Source { member: "file_url", is_text: true, is_list: false, places: &[] },
    Source { member: "file_data", is_text: true, is_list: false, places: &[] },
    Source { member: "source", is_text: false, is_list: false, places: &["url", "data", "file_id"] },
];

/// How this member of a part is written, if it is one that holds a text or a medium.
pub(super) fn source(wire: Wire, member: &str) -> Option<Source> {
    let source = SOURCES.into_iter().find(|source| source.member == member)?;
    // OpenAI's responses have the address itself where its chat has an object.
    let is_address = wire == Wire::Responses && source.places == ["url"];
    Some(if is_address { Source { places: &[], ..source } } else { source })
}

const NONE: Media = Media(0);

/// Types of parts: where they are known, what they hold, and the members of which they need one;
/// none for
/// those that hold something else.
#[rustfmt::skip]
const KNOWN: &[(Wire, &str, Media, &[&str])] = &[
    (Wire::Chat, "text", NONE, &["text"]),
    (Wire::Chat, "refusal", NONE, &[]),
    (Wire::Chat, "image_url", Media::IMAGE, &["image_url"]),
    (Wire::Chat, "input_audio", Media::AUDIO, &["input_audio"]),
    (Wire::Chat, "audio_url", Media::AUDIO, &["audio_url"]),
    (Wire::Chat, "video_url", Media::VIDEO, &["video_url"]),
    (Wire::Chat, "video", Media::VIDEO, &["video"]),
    (Wire::Chat, "file", Media::FILE, &["file"]),
    (Wire::Responses, "input_text", NONE, &["text"]),
    (Wire::Responses, "output_text", NONE, &["text"]),
    (Wire::Responses, "text", NONE, &["text"]),
    (Wire::Responses, "summary_text", NONE, &["text"]),
    (Wire::Responses, "reasoning_text", NONE, &["text"]),
    (Wire::Responses, "refusal", NONE, &[]),
    (Wire::Responses, "input_image", Media::IMAGE, &["image_url", "file_id"]),
    (Wire::Responses, "input_audio", Media::AUDIO, &["input_audio"]),
    (Wire::Responses, "input_video", Media::VIDEO, &["video_url", "video"]),
    (Wire::Responses, "input_file", Media::FILE, &["file_id", "file_url", "file_data"]),
    (Wire::Messages, "text", NONE, &["text"]),
    (Wire::Messages, "tool_use", NONE, &[]),
    (Wire::Messages, "tool_result", NONE, &[]),
    (Wire::Messages, "thinking", NONE, &[]),
    (Wire::Messages, "redacted_thinking", NONE, &[]),
    (Wire::Messages, "server_tool_use", NONE, &[]),
    (Wire::Messages, "web_search_tool_result", NONE, &[]),
    (Wire::Messages, "search_result", NONE, &[]),
    (Wire::Messages, "image", Media::IMAGE, &["source"]),
    (Wire::Messages, "document", Media::FILE, &["source"]),
    (Wire::Messages, "video", Media::VIDEO, &["source"]),
];

/// The members that are a part of DashScope's own protocol, which needs no type.
const NATIVE: [(&str, Media); 5] = [
    ("image", Media::IMAGE),
    ("audio", Media::AUDIO),
    ("video", Media::VIDEO),
    ("file", Media::FILE),
    ("text", NONE),
];

impl Part {
    /// What it holds besides text; `None` for a part that is not known there, or is malformed.
    pub(super) fn media(&self, wire: Wire) -> Option<Media> {
        if wire == Wire::Native
            && let Some((_, media)) = NATIVE.iter().find(|(name, _)| self.sources.contains(name))
        {
            return self.broken.is_empty().then_some(*media);
        }
        let wire = if wire == Wire::Native { Wire::Chat } else { wire };
        let kind = self.kind.as_deref()?;
        let mut known = KNOWN.iter().filter(|(there, name, ..)| *there == wire && *name == kind);
        let (.., media, needed) = known.next()?;
        let is_whole = needed.is_empty() || needed.iter().any(|name| self.sources.contains(name));
        is_whole.then_some(*media)
    }
}
