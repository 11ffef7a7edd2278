//! The rarer errands of the mixed load: upstream misbehaves, identifiers, pages, mistakes, silence.

use std::time::Duration;

use dashscope_proxy::clock;
use dashscope_proxy::standin::{End, Reply};
use serde_json::Value;

use super::dice::Dice;
use super::exchange::{Ask, Lab, Outcome, PATIENCE, Want, events, path, right, short};
use super::mixed::{IDLE_LIMIT, SLOTS};
use super::rest;
use crate::harness::{AUTH, Answer, Client};

/// Upstream closes or resets the connection instead of an answer. A second try is right only where
/// the connection may have been stale.
pub(super) fn upstream_gives_up(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let first = dice.pick(&[Reply::CloseBeforeHead, Reply::ResetBeforeHead]).clone();
    let mut ask = Ask::pool(nonce, path(dice.next()), vec![first, short(nonce)], right(nonce));
    ask.wanted.push(Want::Error(502));
    lab.exchange(ask)
}

pub(super) fn upstream_cuts(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let (parts, all) = events(nonce, 1 + dice.below(20), Duration::from_millis(20));
    let reply = Reply::sse(parts, *dice.pick(&[End::Fin, End::Reset]));
    lab.exchange(Ask::pool(nonce, path(dice.next()), vec![reply], Want::Broken(all)))
}

pub(super) fn upstream_silent(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let replies = vec![Reply::HangBeforeHead];
    lab.exchange(Ask::pool(nonce, path(dice.next()), replies, Want::Error(504)))
}

pub(super) fn upstream_goes_silent(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let (parts, all) = events(nonce, 3, Duration::ZERO);
    let replies = vec![Reply::sse(parts, End::Hang)];
    lab.exchange(Ask::pool(nonce, path(dice.next()), replies, Want::Broken(all)))
}

/// A file is made with one key, and asked for with the same one.
pub(super) fn file(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let made = Ask { path: "/v1/files".to_owned(), ..thing(nonce, "file") };
    let asked = Ask {
        method: "GET",
        path: format!("/v1/files/file-{nonce}"),
        body: Vec::new(),
        ..thing(&format!("{nonce}.2"), "file")
    };
    same_key(lab, made, asked, dice)
}

/// A response is continued with the key that made it.
pub(super) fn response(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    let path = || "/v1/responses".to_owned();
    let made = Ask { path: path(), ..thing(nonce, "resp") };
    let next = format!(r#"{{"model":"any","previous_response_id":"resp-{nonce}"}}"#);
    let asked = Ask { path: path(), body: next.into(), ..thing(&format!("{nonce}.2"), "resp") };
    same_key(lab, made, asked, dice)
}

/// A request whose answer makes something.
fn thing(nonce: &str, kind: &str) -> Ask {
    let body = format!(r#"{{"id":"{kind}-{nonce}","object":"{kind}"}}"#);
    let want = Want::Whole(200, body.clone().into());
    Ask::pool(nonce, "", vec![Reply::json(200, body)], want)
}

fn same_key(lab: &Lab<'_>, made: Ask, asked: Ask, dice: &mut Dice) -> Outcome {
    let (word, maker) = lab.exchange_on(&mut lab.connect(), made)?;
    if word != "200" {
        return Ok(format!("not made: {word}"));
    }
    rest(Duration::from_millis(dice.below(1500)));
    let path = asked.path.clone();
    let (word, asker) = lab.exchange_on(&mut lab.connect(), asked)?;
    match (maker.last(), asker.last()) {
        (Some(maker), Some(asker)) if maker != asker => {
            Err(format!("{path} was made by {maker} and asked of {asker}"))
        }
        _ => Ok(word),
    }
}

fn ask(lab: &Lab<'_>, method: &str, path: &str, body: &[u8]) -> Result<Answer, String> {
    let mut client = lab.connect();
    client.send(method, path, &[AUTH], body);
    client.read_answer().map_err(|cut| format!("{method} {path}: {cut:?}"))
}

pub(super) fn polls(lab: &Lab<'_>, _: &str, dice: &mut Dice) -> Outcome {
    let path = *dice.pick(&["/health", "/models/status", "/metrics", "/v1/models", "/"]);
    let answer = ask(lab, "GET", path, b"")?;
    let is_right = match path {
        "/health" => answer.json()["ok"] == true && answer.json()["stateWritable"] == true,
        "/models/status" => answer.json()["totalSlots"] == SLOTS,
        "/metrics" => answer.text().contains("\n# TYPE "),
        _ => answer.json().is_object(),
    };
    if is_right && answer.status == 200 { Ok(path.to_owned()) } else { Err(format!("{answer:?}")) }
}

pub(super) fn wrong_key(lab: &Lab<'_>, _: &str, dice: &mut Dice) -> Outcome {
    let mut client = lab.connect();
    let headers = [("authorization", "Bearer another")];
    client.send("POST", path(dice.next()), &headers, br#"{"model":"any"}"#);
    status(401, client.read_answer().map_err(|cut| format!("{cut:?}"))?)
}

pub(super) fn unknown_path(lab: &Lab<'_>, nonce: &str, dice: &mut Dice) -> Outcome {
    match dice.below(2) {
        0 => status(404, ask(lab, "POST", &format!("/v1/{nonce}"), b"{}")?),
        _ => status(405, ask(lab, "DELETE", path(dice.next()), b"")?),
    }
}

pub(super) fn bad_body(lab: &Lab<'_>, _: &str, dice: &mut Dice) -> Outcome {
    let bodies: [&[u8]; 4] = [b"{\"model\"", b"[]", b"", br#"{"model":"a","model":"b"}"#];
    status(400, ask(lab, "POST", path(dice.next()), dice.pick::<&[u8]>(&bodies))?)
}

fn status(wanted: u16, answer: Answer) -> Outcome {
    let says_why = serde_json::from_slice::<Value>(&answer.body).is_ok();
    if answer.status == wanted && says_why {
        Ok(wanted.to_string())
    } else {
        Err(format!("{answer:?} instead of {wanted}"))
    }
}

/// A connection that is left lying after a request is closed by the proxy, and not before time.
pub(super) fn left_lying(lab: &Lab<'_>, _: &str, _: &mut Dice) -> Outcome {
    let mut client = lab.connect();
    client.send("GET", "/health", &[], b"");
    let answer = client.read_answer().map_err(|cut| format!("{cut:?}"))?;
    let since = clock::instant();
    let outcome = closed(&mut client, answer.status == 200);
    let lay = since.elapsed();
    if lay + Duration::from_secs(1) < IDLE_LIMIT {
        return Err(format!("an idle connection was closed after {lay:?}"));
    }
    outcome
}

/// So is one that never says anything, or only half of it.
pub(super) fn never_asks(lab: &Lab<'_>, _: &str, dice: &mut Dice) -> Outcome {
    let mut client = lab.connect();
    let half = *dice.pick(&["", "POST /v1/messages HTTP/1.1\r\nhost"]);
    let sent = client.send_raw(half.as_bytes()).is_ok();
    closed(&mut client, sent)
}

fn closed(client: &mut Client, is_well: bool) -> Outcome {
    if is_well && client.wait_closed(IDLE_LIMIT + PATIENCE) {
        Ok("closed".to_owned())
    } else {
        Err("a connection that lies idle is not closed".to_owned())
    }
}
