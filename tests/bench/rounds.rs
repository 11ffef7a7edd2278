//! Rounds in which everyone has a turn.

use crate::Failure;

/// What one candidate's turns found: a list of figures for each round.
pub(crate) type Turns = Vec<Vec<f64>>;

/// Measures all of them in turn, round after round, so that whatever disturbs the machine
/// disturbs all of them; each round begins with another one, so that nobody always comes after
/// the same. One more round goes first and is thrown away.
pub(crate) fn interleaved<T>(
    rounds: usize,
    all: &mut [T],
    mut measure: impl FnMut(&mut T) -> Result<Vec<f64>, Failure>,
) -> Result<Vec<Turns>, Failure> {
    for one in all.iter_mut() {
        measure(one)?;
    }
    let mut turns = vec![Turns::new(); all.len()];
    for round in 0..rounds {
        for at in order(all.len(), round) {
            turns[at].push(measure(&mut all[at])?);
        }
    }
    Ok(turns)
}

/// Forwards and backwards in turn, each time from another start.
fn order(count: usize, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    order.rotate_left((round / 2) % count.max(1));
    if round % 2 == 1 {
        order.reverse();
    }
    order
}
