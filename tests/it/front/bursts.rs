//! Many clients in the same instant: the library leaves some of them unread.

use std::sync::Barrier;
use std::thread;

use super::{chat, health, quiet};
use crate::harness::{Client, Proxy};
use dashscope_proxy::standin::StandIn;

const ROUNDS: usize = 10;

/// A round: all connect at once, and none leaves before everybody has been served.
fn burst(proxy: &Proxy<'_>, count: usize) -> Vec<Client> {
    let address = proxy.address();
    let start = Barrier::new(count);
    thread::scope(|scope| {
        let clients: Vec<_> = (0..count)
            .map(|number| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let mut client = Client::connect(address);
                    for turn in 0..2 {
                        let answer = match (number + turn) % 2 {
                            0 => health(&mut client),
                            _ => chat(&mut client),
                        };
                        assert_eq!(answer.map(|answer| answer.status), Ok(200), "of {count}");
                    }
                    client
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("it is served")).collect()
    })
}

#[test]
fn every_client_of_a_burst_is_served_while_the_others_stay() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let mut left_open: Vec<Client> = Vec::new();
    for count in [4, 8, 16, 64, 200] {
        for _ in 0..ROUNDS {
            let mut clients = burst(&proxy, count);
            // Some of this round and of those before it are still there in the next.
            clients.truncate(count.div_ceil(4));
            left_open.extend(clients);
            let surplus = left_open.len().saturating_sub(100);
            left_open.drain(..surplus);
        }
    }
    for client in &mut left_open {
        assert_eq!(health(client).map(|answer| answer.status), Ok(200));
    }
}

#[test]
fn silent_connections_hold_up_no_client_that_comes_with_them() {
    let standin = StandIn::start().unwrap();
    let proxy = quiet(&standin).start();
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let silent: Vec<Client> = (0..8).map(|_| proxy.connect()).collect();
        let real = burst(&proxy, 8);
        rounds.push((silent, real));
    }
}
