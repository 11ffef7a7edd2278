//! Conversations like those that coding clients send.
//!
//! Source code, prose, Chinese, what tools print and some base64, so that quotes, backslashes,
//! `\n` and letters outside ASCII are about as frequent as in real prompts: what a body costs
//! depends on them, and hardly anything on a long run of one letter. The same at every run.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use serde_json::{Value, json};

/// The body around a conversation is about as long.
const ENVELOPE: usize = 128;
/// From here on a client brings all of its tools, and now and then a picture.
const LARGE: usize = 16 << 10;
/// Below this nothing but the last message is begun.
const LEAST_MESSAGE: usize = 700;
/// A picture is a small part of everything, and never large.
const LARGEST_PICTURE: usize = 96 << 10;

/// `"messages":[…],"tools":[…]` of a body of about `size` bytes; each is made once.
pub(crate) fn conversation(size: usize) -> Arc<str> {
    static MADE: LazyLock<Mutex<HashMap<usize, Arc<str>>>> = LazyLock::new(Mutex::default);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let make = || {
        let text = Writer::new(size.saturating_sub(ENVELOPE)).write();
        let is_json = serde_json::from_str::<Value>(&format!("{{{text}}}")).is_ok();
        assert!(is_json, "a conversation is JSON");
        text.into()
    };
    Arc::clone(made.entry(size).or_insert_with(make))
}

/// What a message is made of.
#[derive(Clone, Copy)]
enum Content {
    Prose,
    /// Chinese as it is.
    Chinese,
    /// Chinese as clients send it whose JSON is ASCII: `\u4f60\u597d`.
    Escaped,
    /// A file with the numbers of its lines, as tools show it.
    Code,
    /// JSON within the JSON: each quote has a backslash, and some of them three.
    Json,
}

struct Writer {
    text: String,
    /// After the messages.
    end: String,
    size: usize,
    random: Random,
}

impl Writer {
    fn new(size: usize) -> Self {
        let count = if size < LARGE { 1 } else { TOOLS.len() };
        let tools: Vec<_> = TOOLS.iter().take(count).map(tool).collect();
        let end = format!(r#"],"tools":{}"#, Value::from(tools));
        Self { text: String::with_capacity(size), end, size, random: Random(0x9e37_79b9_7f4a_7c15) }
    }

    /// Turns of user, assistant, tool and assistant, until there is only room for a question.
    fn write(mut self) -> String {
        self.text.push_str(r#""messages":["#);
        let system = self.left().min(4 << 10) / 5;
        self.message("system", Content::Prose, system);
        for turn in 0.. {
            if self.left() < 2 * LEAST_MESSAGE {
                break;
            }
            let asks = [Content::Chinese, Content::Prose, Content::Escaped][turn % 3];
            let length = self.length(1500);
            self.message("user", asks, length);
            if turn % 8 == 3 && self.size >= LARGE {
                self.picture();
            }
            let shows = [Content::Code, Content::Code, Content::Json][turn % 3];
            self.call(turn, shows);
            let length = self.length(1200);
            self.message("assistant", Content::Prose, length);
        }
        // Exactly what is missing.
        let left = self.left();
        self.message("user", Content::Chinese, left);
        self.text + &self.end
    }

    fn left(&self) -> usize {
        self.size.saturating_sub(self.text.len() + self.end.len())
    }

    /// Up to `most`, and never more than half of what is left.
    fn length(&mut self, most: usize) -> usize {
        (most / 4 + self.random.below(most * 3 / 4)).min(self.left() / 2)
    }

    /// A message of `length` bytes.
    fn message(&mut self, role: &str, content: Content, length: usize) {
        let end = self.text.len() + length;
        if !self.text.ends_with('[') {
            self.text.push(',');
        }
        self.text += &format!(r#"{{"role":"{role}","content":""#);
        self.fill(content, end.saturating_sub(2));
        self.text.push_str(r#""}"#);
    }

    /// The assistant calls a tool, which shows some kilobytes.
    fn call(&mut self, turn: usize, content: Content) {
        let name = TOOLS[self.random.below(TOOLS.len())];
        let path = format!("src/{}/{}.rs", self.random.word(), self.random.word());
        let arguments = json!({"path": path, "pattern": "\\bfn \"(\\w+)\""}).to_string();
        let call = json!({"role": "assistant", "content": null, "tool_calls": [{
            "id": format!("call_{turn:04}"), "type": "function",
            "function": {"name": name, "arguments": arguments},
        }]});
        self.text +=
            &format!(r#",{call},{{"role":"tool","tool_call_id":"call_{turn:04}","content":""#);
        let length = self.length(12 << 10);
        self.fill(content, self.text.len() + length);
        self.text.push_str(r#""}"#);
    }

    fn picture(&mut self) {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let length = (self.size / 24).min(LARGEST_PICTURE).min(self.left() / 2);
        self.text.push_str(concat!(
            r#",{"role":"user","content":[{"type":"text","text":"And this \"screenshot\"?\n"},"#,
            r#"{"type":"image_url","image_url":{"url":"data:image/png;base64,"#
        ));
        for _ in 0..length {
            self.text.push(char::from(letters[self.random.below(letters.len())]));
        }
        self.text.push_str(r#""}}]}"#);
    }

    /// Lines until the text has `end` bytes, the last few of them blanks.
    fn fill(&mut self, content: Content, end: usize) {
        for number in 1.. {
            let line = self.random.line(content, number);
            if self.text.len() + line.len() > end {
                break;
            }
            self.text += &line;
        }
        while self.text.len() < end {
            self.text.push(' ');
        }
    }
}

/// Numbers that look like chance (Marsaglia's xorshift) and are always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).map_or(0, |number| number % limit.max(1))
    }

    fn of<'a>(&mut self, all: &[&'a str]) -> &'a str {
        all[self.below(all.len())]
    }

    fn word(&mut self) -> &'static str {
        self.of(&WORDS)
    }

    /// A line as it stands in a JSON string.
    fn line(&mut self, content: Content, number: usize) -> String {
        match content {
            Content::Prose => {
                let count = 6 + self.below(14);
                let words: Vec<_> = (0..count).map(|_| self.word()).collect();
                let end = self.of(&[
                    ". ",
                    ", and ",
                    ".\n\n",
                    ", \"so to speak\"; ",
                    " (`cargo test`).\n- ",
                ]);
                escaped(&format!("The {}{end}", words.join(" ")))
            }
            Content::Chinese => escaped(&self.chinese()),
            Content::Escaped => ascii(&escaped(&self.chinese())),
            Content::Code => {
                let line = self.code();
                escaped(&format!("{number:>6}\t{line}\n"))
            }
            Content::Json => {
                let text = self.code();
                let path = format!("C:\\work\\{}\\{}.rs", self.word(), self.word());
                let found =
                    json!({"path": path, "line": number, "text": text, "kind": self.word()});
                escaped(&format!("{found}\n"))
            }
        }
    }

    fn chinese(&mut self) -> String {
        let parts: Vec<_> = (0..2 + self.below(3)).map(|_| self.of(&CHINESE)).collect();
        format!(
            "{}{}",
            parts.join("，"),
            self.of(&["。", "。\n", "？\n", "（见 `src/main.rs`）。"])
        )
    }

    fn code(&mut self) -> String {
        let [a, b, c] = [self.word(), self.word(), self.word()];
        let indent = " ".repeat(4 * self.below(5));
        let line = match self.below(12) {
            0 => String::new(),
            1 => "}".to_owned(),
            2 => format!("// The {a} {b} before its {c}: 否则会重复。"),
            3 => format!("let {a} = self.{b}.get(\"{c}\").copied().unwrap_or_default();"),
            4 => format!("if {a} != \"\\n\" && !{b}.starts_with(\"C:\\\\{c}\\\\\") {{"),
            5 => format!("println!(\"{a}: {{}} of {{}}\", {b}, {c}.len());"),
            6 => format!("fn {a}_{b}(&mut self, {c}: &str) -> Result<(), Error> {{"),
            7 => format!("return Err(format!(\"failed to {a} `{{{b}}}`: {{{c}}}\"));"),
            8 => format!("for ({a}, {b}) in {c}.iter().enumerate() {{"),
            9 => format!("{a}: {{ \"{b}\": '{c}', \"depth\": {} }},", number(self)),
            10 => format!("assert_eq!({a}.{b}(\"{c}\"), Some({}));", number(self)),
            _ => format!("{a}.{b}(&{c}, {})?;", number(self)),
        };
        indent + &line
    }
}

fn number(random: &mut Random) -> usize {
    random.below(100_000)
}

/// As it stands in a JSON string.
fn escaped(text: &str) -> String {
    let mut quoted = Value::from(text).to_string();
    quoted.pop();
    quoted.split_off(1)
}

fn ascii(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        if letter.is_ascii() {
            out.push(letter);
            continue;
        }
        for unit in letter.encode_utf16(&mut [0; 2]) {
            out += &format!("\\u{unit:04x}");
        }
    }
    out
}

fn tool(name: &&str) -> Value {
    json!({"type": "function", "function": {
        "name": name,
        "description": format!("Runs `{name}` in the workspace.\n\nUse it for \"one\" step at a time; \
            the path is relative, or begins with \\\\server\\share."),
        "parameters": {"type": "object", "required": ["path"], "additionalProperties": false,
            "properties": {
                "path": {"type": "string", "description": "A file or a folder, e.g. \"src/lib.rs\"."},
                "pattern": {"type": "string", "description": "A regular expression such as \\bfn\\s+\\w+."},
                "limit": {"type": "integer", "minimum": 1, "default": 200},
            }},
    }})
}

const TOOLS: [&str; 12] = [
    "read_file",
    "write_file",
    "edit_file",
    "list_files",
    "search",
    "run_command",
    "git_diff",
    "git_log",
    "fetch_page",
    "ask_user",
    "plan",
    "run_tests",
];

const WORDS: [&str; 40] = [
    "request", "answer", "slot", "key", "model", "limit", "body", "head", "stream", "client",
    "index", "buffer", "count", "state", "value", "path", "line", "token", "error", "reader",
    "writer", "parse", "retry", "close", "open", "send", "wait", "lock", "queue", "thread", "test",
    "that", "which", "with", "after", "until", "each", "where", "more", "first",
];

const CHINESE: [&str; 16] = [
    "请把这个函数拆成两个",
    "测试在第三步失败了",
    "日志里只有一行错误",
    "我想先看一下目录结构",
    "不要改动公开的接口",
    "每个请求都会先检查额度",
    "这里的锁持有得太久",
    "客户端已经断开连接",
    "配置文件里没有这个字段",
    "中文的注释要保留",
    "上游返回了四百二十九",
    "如果超时就换下一个模型",
    "这段代码来自旧的仓库",
    "输出太长被截断了",
    "先运行单元测试再提交",
    "帮我解释一下原因",
];
