//! What an answer says it used, however it is cut. The first four bytes are the sizes of the
//! parts; behind them 0x00 and 0x01 stand for much text, so that an answer outgrows what is kept.

#![no_main]

use dashscope_proxy::fuzzing::usage;
use libfuzzer_sys::fuzz_target;

/// What the scan promises to keep at most.
const MOST: usize = 20 * 1024;

const LONGEST: usize = 192 * 1024;

fn answer(text: &[u8]) -> Vec<u8> {
    let mut answer = Vec::new();
    for byte in text {
        match byte {
            0 => answer.extend([b' '; 4096]),
            1 => answer.extend([b'x'; 997]),
            byte => answer.push(*byte),
        }
        if answer.len() > LONGEST {
            break;
        }
    }
    answer
}

/// The answer in parts whose sizes go round.
fn parts<'a>(answer: &'a [u8], sizes: &'a [usize]) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = answer;
    let mut sizes = sizes.iter().cycle();
    std::iter::from_fn(move || {
        let size = (*sizes.next()?).clamp(1, rest.len().max(1)).min(rest.len());
        let (part, after) = rest.split_at(size);
        rest = after;
        (!part.is_empty()).then_some(part)
    })
}

fuzz_target!(|input: &[u8]| {
    let Some((sizes, text)) = input.split_first_chunk::<4>() else { return };
    let answer = answer(text);
    let (whole, kept) = usage([&answer[..]].into_iter());
    assert!(kept <= MOST);
    let chosen = sizes.map(|size| usize::from(size).pow(2) + 1);
    for sizes in [&chosen[..], &[1000], &[16 * 1024], &[40_000, 1], &[33]] {
        let (found, kept) = usage(parts(&answer, sizes));
        assert_eq!(found, whole, "parts of {sizes:?}");
        assert!(kept <= MOST, "{kept}");
    }
});
