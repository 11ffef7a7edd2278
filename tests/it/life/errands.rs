//! What clients do all day: the errands of the mixed load and how often each is run.

use std::time::Duration;

use dashscope_proxy::standin::{End, Framing, Part, Reply, Shape};

use super::dice::Dice;
use super::exchange::{Ask, Lab, Outcome, Want, events, path, right, send, short};
use super::upstream::NONCE;
use super::{rare, rest};
use crate::harness::{AUTH, Answer, Client, PROXY_KEY};

/// A large body, as pictures make them.
const LARGE: usize = 10_000_000;

pub(super) struct Errand {
    pub(super) name: &'static str,
    /// How often, in a thousand.
    weight: u64,
    pub(super) run: fn(&Lab<'_>, &str, &mut Dice) -> Outcome,
}

const fn errand(
    weight: u64,
    name: &'static str,
    run: fn(&Lab<'_>, &str, &mut Dice) -> Outcome,
) -> Errand {
    Errand { name, weight, run }
}

pub(super) const ERRANDS: [Errand; 26] = [
    errand(261, "short answer", short_answer),
    errand(80, "kept connection", kept_connection),
    errand(130, "stream", stream),
    errand(40, "leaves before the head", leaves_before_head),
    errand(60, "leaves in mid-stream", leaves_in_stream),
    errand(30, "leaves in mid-upload", leaves_in_upload),
    errand(30, "slow reader", slow_reader),
    errand(20, "slow upload", slow_upload),
    errand(10, "large body", large_body),
    errand(5, "large answer", large_answer),
    errand(40, "exhausted", exhausted),
    errand(2, "all exhausted", all_exhausted),
    errand(30, "throttled", throttled),
    errand(20, "throttled for good", throttled_for_good),
    errand(30, "unavailable", unavailable),
    errand(5, "key rejected", key_rejected),
    errand(15, "upstream gives up", rare::upstream_gives_up),
    errand(20, "upstream cuts", rare::upstream_cuts),
    errand(10, "upstream silent", rare::upstream_silent),
    errand(10, "upstream goes silent", rare::upstream_goes_silent),
    errand(40, "file", rare::file),
    errand(40, "response", rare::response),
    errand(30, "polls", rare::polls),
    errand(15, "wrong key", rare::wrong_key),
    errand(12, "unknown path", rare::unknown_path),
    errand(15, "bad body", rare::bad_body),
];

/// The next errand.
pub(super) fn next(dice: &mut Dice) -> &'static Errand {
    static ALL: [Errand; 26] = ERRANDS;
    let mut left = dice.below(ALL.iter().map(|errand| errand.weight).sum());
    for errand in &ALL {
        match left.checked_sub(errand.weight) {
            Some(rest) => left = rest,
            None => return errand,
        }
    }
    unreachable!("the weights add up")
}

fn short_answer(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    lab.exchange(Ask::short(nonce, path(dice.next())))
}

fn kept_connection(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let mut client = lab.connect();
    let mut word = String::new();
    for n in 0..=dice.below(6) {
        (word, _) = lab.exchange_on(&mut client, Ask::short(&format!("{nonce}.{n}"), path(n)))?;
        rest(Duration::from_millis(dice.below(300)));
        client.send("GET", "/health", &[], b"");
        let health = client.read_answer().map_err(|cut| format!("/health: {cut:?}"))?;
        if health.status != 200 {
            return Err(format!("/health on a kept connection: {health:?}"));
        }
    }
    Ok(word)
}

fn stream(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let (parts, all) = events(nonce, 5 + dice.below(40), Duration::from_millis(dice.below(100)));
    let reply = Reply::sse(parts, End::Clean);
    lab.exchange(Ask::pool(nonce, path(dice.next()), vec![reply], Want::Whole(200, all)))
}

fn leaves_before_head(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let before_head = Duration::from_secs(3);
    let reply = Reply::Delay { before_head, then: Box::new(short(nonce)) };
    let ask = Ask::pool(nonce, path(dice.next()), vec![reply], right(nonce));
    let mut client = lab.connect();
    lab.announce(&ask);
    send(&mut client, &ask);
    rest(Duration::from_millis(dice.below(1500)));
    lab.upstream.done(nonce);
    Ok("left".to_owned())
}

fn leaves_in_stream(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let (parts, all) = events(nonce, 50, Duration::from_millis(50));
    let reply = Reply::sse(parts, End::Clean);
    let ask = Ask::pool(nonce, path(dice.next()), vec![reply], right(nonce));
    let mut client = lab.connect();
    lab.announce(&ask);
    send(&mut client, &ask);
    let mut received = Vec::new();
    if client.read_head().is_ok_and(|head| head.status == 200) {
        for _ in 0..dice.below(20) {
            let Ok(Some(chunk)) = client.read_chunk() else { break };
            received.extend(chunk);
        }
    }
    lab.upstream.done(nonce);
    // Half of them leave with events unread, which resets the connection.
    rest(Duration::from_millis(dice.below(2) * 200));
    if all.starts_with(&received) {
        Ok("left".to_owned())
    } else {
        Err(format!("another stream: {}", String::from_utf8_lossy(&received)))
    }
}

fn leaves_in_upload(lab: &Lab<'_>, _: &str, dice: &mut Dice) -> Outcome {
    let mut client = lab.connect();
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\nx-api-key: {PROXY_KEY}\r\ncontent-length: 3000000\r\n\r\n",
        path(dice.next())
    );
    client.send_raw(head.as_bytes()).map_err(|error| error.to_string())?;
    let part = vec![b' '; usize::try_from(dice.below(1_000_000)).unwrap()];
    client.send_raw(&part).map_err(|error| error.to_string())?;
    rest(Duration::from_millis(dice.below(500)));
    Ok("left".to_owned())
}

fn slow_reader(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let parts: Vec<Vec<u8>> = (0..48).map(|n| format!("{nonce} {n:60000}\n").into()).collect();
    let all = parts.concat();
    let reply = Reply::Stream {
        headers: vec![("content-type".to_owned(), "text/plain".to_owned())],
        parts: parts.into_iter().map(Part::now).collect(),
        framing: Framing::Chunked,
        end: End::Clean,
    };
    let ask = Ask::pool(nonce, path(dice.next()), vec![reply], Want::Whole(200, all));
    let pause = Duration::from_millis(dice.below(60));
    let read = |client: &mut Client| {
        let head = client.read_head()?;
        let mut body = Vec::new();
        while let Some(chunk) = client.read_chunk()? {
            body.extend(chunk);
            rest(pause);
        }
        Ok(Answer { status: head.status, headers: head.headers, body })
    };
    lab.exchange_with(&mut lab.connect(), ask, read).map(|(word, _)| word)
}

fn slow_upload(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let ask = Ask::short(nonce, path(dice.next()));
    let mut client = lab.connect();
    lab.announce(&ask);
    let head = format!(
        "POST {} HTTP/1.1\r\nhost: x\r\n{}: {}\r\n{NONCE}: {nonce}\r\ncontent-length: {}\r\n\r\n",
        ask.path,
        AUTH.0,
        AUTH.1,
        ask.body.len()
    );
    let mut sent = client.send_raw(head.as_bytes());
    for part in ask.body.chunks(16) {
        rest(Duration::from_millis(dice.below(250)));
        sent = sent.and_then(|()| client.send_raw(part));
    }
    let answer = client.read_answer();
    lab.upstream.done(nonce);
    match answer {
        Ok(answer) if matches!(answer.status, 200 | 502 | 503) => Ok(answer.status.to_string()),
        other => Err(format!("slow upload {nonce}: {sent:?}, {other:?}")),
    }
}

fn large_body(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let mut ask = Ask::short(nonce, path(dice.next()));
    let tail = format!(r#","picture":"{}"}}"#, "x".repeat(LARGE));
    ask.body.pop();
    ask.body.extend(tail.into_bytes());
    lab.exchange(ask)
}

fn large_answer(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let body = format!(r#"{{"id":"{nonce}","picture":"{}"}}"#, "y".repeat(LARGE));
    let want = Want::Whole(200, body.clone().into());
    lab.exchange(Ask::pool(nonce, path(dice.next()), vec![Reply::json(200, body)], want))
}

fn exhausted(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let used_up = (0..=dice.below(3)).map(|_| Reply::Exhausted(*dice.pick(&Shape::ALL)));
    let mut replies: Vec<Reply> = used_up.collect();
    replies.push(short(nonce));
    lab.exchange(Ask::pool(nonce, path(dice.next()), replies, right(nonce)))
}

fn all_exhausted(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let reply = Reply::Exhausted(*dice.pick(&Shape::ALL));
    lab.exchange(Ask::pool(nonce, path(dice.next()), vec![reply], Want::Error(503)))
}

/// Upstream answers this first, and then as it should. Where no other slot is left, the first
/// answer is the client's.
fn at_first(lab: &Lab<'_>, nonce: &str, dice: &mut Dice, status: u16, code: &str) -> Outcome {
    let body = error(code, nonce);
    let replies = vec![Reply::json(status, body.clone()), short(nonce)];
    let mut ask = Ask::pool(nonce, path(dice.next()), replies, right(nonce));
    // A 401 would say to the client that its own key is wrong.
    let handed_on = if status == 401 { Want::Error(502) } else { Want::Whole(status, body.into()) };
    ask.wanted.push(handed_on);
    lab.exchange(ask)
}

fn error(code: &str, nonce: &str) -> String {
    format!(r#"{{"error":{{"code":"{code}","message":"{nonce}"}}}}"#)
}

fn throttled(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    at_first(lab, nonce, dice, 429, "Throttling.RateQuota")
}

fn throttled_for_good(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let body = error("Throttling.RateQuota", nonce);
    let want = Want::Whole(429, body.clone().into());
    lab.exchange(Ask::pool(nonce, path(dice.next()), vec![Reply::json(429, body)], want))
}

fn unavailable(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let (status, code) =
        *dice.pick(&[(500, "InternalError"), (502, "x"), (503, "ModelServingError")]);
    at_first(lab, nonce, dice, status, code)
}

fn key_rejected(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    at_first(lab, nonce, dice, 401, "invalid_api_key")
}
