//! Who does not belong to the job is told so, and the job goes on without.

use crate::{Rank, command, port, start};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// What rank 0 answers to `said`; nothing where it ends the connection without a word.
fn answer(port: u16, said: &[u8]) -> String {
    let pause = |_| std::thread::sleep(Duration::from_millis(100));
    let mut stream = (0..3000).find_map(|_| TcpStream::connect(("127.0.0.1", port + 1)).map_err(pause).ok()).expect("rank 0 listens");
    stream.write_all(said).unwrap();
    let mut answer = Vec::new();
    // A connection that was refused may end with an error after what was sent.
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// A hello of the protocol as it is now: 8 bytes, version 1, size, rank, configuration, version of the program.
fn hello(protocol: u32, size: u32, rank: u32, version: &str) -> Vec<u8> {
    let mut bytes = b"candleRV".to_vec();
    [protocol, size, rank].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
    bytes.extend([0; 32]);
    bytes.extend(version.bytes().chain(std::iter::repeat(0)).take(32));
    bytes
}

/// Rank 1 of three, after rank 0 has let it in: of two that come one is refused, whoever of them was first.
fn let_in(port: u16) -> Rank {
    let mut two = [(); 2].map(|()| start(&mut command(1, 3, port, "leave")));
    let refused = loop {
        match two.iter_mut().position(|rank| rank.0.try_wait().unwrap().is_some()) {
            Some(ended) => break ended,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let [first, second] = two;
    let (refused, other) = if refused == 0 { (first, second) } else { (second, first) };
    let (code, said) = refused.end();
    assert!(code == 2 && said.contains("rank 1 is here already, from 127.0.0.1:"), "{said}");
    other
}

#[test]
fn the_wrong_ones_are_refused_and_the_right_one_comes_in() {
    let port = port();
    let rank_0 = start(&mut command(0, 3, port, "leave"));
    let version = env!("CARGO_PKG_VERSION");
    for (said, reply) in [
        (b"GET / HTTP/1.1\r\nHost: rank\r\n\r\n".to_vec(), "no rank of candle-train: it begins with \"GET / HTTP/1.1\\r\\n\""),
        (hello(2, 3, 1, version), "speaks another version of the rendezvous"),
        (hello(1, 3, 1, "9.9.9"), "rank 1 is version \"9.9.9\", rank 0 \"0.1.0\""),
        (hello(1, 8, 1, version), "rank 1 counts 8 ranks, rank 0 counts 3"),
        (hello(1, 3, 0, version), "rank 0 asks rank 0 of 3"),
        (hello(1, 3, 7, version), "rank 7 asks rank 0 of 3"),
        (hello(1, 3, 1, version), "rank 1 has another configuration than rank 0"),
    ] {
        let answer = answer(port, &said);
        assert!(answer.contains(reply), "{reply:?}: {answer:?}");
    }
    // Some connect and say nothing, or go at once.
    let silent = TcpStream::connect(("127.0.0.1", port + 1)).unwrap();
    drop(TcpStream::connect(("127.0.0.1", port + 1)).unwrap());

    let rank_1 = let_in(port);
    let (code, said) = start(&mut command(1, 8, port, "leave")).end();
    assert!(code == 2 && said.contains("rank 1 counts 8 ranks, rank 0 counts 3"), "{said}");
    let (code, said) = start(command(2, 3, port, "leave").env("CANDLE_TEST_CONFIGURATION", "batch = 8")).end();
    assert!(code == 2 && said.contains("rank 2 has another configuration than rank 0"), "{said}");

    let rank_2 = start(&mut command(2, 3, port, "leave"));
    let said: Vec<String> = [rank_0, rank_1, rank_2]
        .map(|rank: Rank| {
            let (code, said) = rank.end();
            assert_eq!(code, 0, "{said}");
            said
        })
        .into();
    // On a slow machine the silent one is refused too.
    let silent_too = said[0].matches(" bytes within 10 s").count();
    assert_eq!(said[0].matches("warning: rendezvous: refused 127.0.0.1:").count() - silent_too, 10, "{}", said[0]);
    drop(silent);
}

#[test]
fn a_rank_that_went_may_come_again() {
    let port = port();
    let rank_0 = start(&mut command(0, 3, port, "leave"));
    let first = let_in(port);
    first.signal("KILL");
    assert_eq!(first.end().0, -9);
    for rank in [rank_0, start(&mut command(1, 3, port, "leave")), start(&mut command(2, 3, port, "leave"))] {
        let (code, said) = rank.end();
        assert_eq!(code, 0, "{said}");
    }
}

#[test]
fn another_server_at_rank_0s_port_is_recognised() {
    let port = port();
    let server = TcpListener::bind(("127.0.0.1", port + 1)).unwrap();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
    });
    let (code, said) = start(&mut command(1, 2, port, "leave")).end();
    assert!(code == 2 && said.contains("no rank of candle-train: it begins with \"HTTP/1.1 400 Ba"), "{said}");
    server.join().unwrap();
}

#[test]
fn a_port_that_is_taken_is_named() {
    let port = port();
    let _taken = TcpListener::bind(("0.0.0.0", port + 1)).unwrap();
    let (code, said) = start(&mut command(0, 2, port, "leave")).end();
    assert!(code == 2 && said.contains(&format!("rank 0 cannot listen on port {} (MASTER_PORT + 1)", port + 1)), "{said}");
}
