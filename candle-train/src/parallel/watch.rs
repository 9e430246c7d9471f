//! Who of the ranks is alive: every rank keeps a connection to rank 0, which tells all others when one of them is lost.
//!
//! A process that dies closes its connection, at once. A host that vanishes, or a process that is stopped, says nothing for
//! [`SILENCE`]. A rank that lives and is late is found by the number of calls it has made, which it says every second.

use super::shortened;
use candle_models::{Error, Result};
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// After this time without a word a rank counts as lost.
pub const SILENCE: Duration = Duration::from_secs(10);
const BEAT: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(50);
/// Longest text of a message.
const TEXT_LENGTH: usize = 1 << 10;
const HEAD: usize = 1 + 4 + 8 + 2;

/// A connection to another rank: rank 0 has one to each, the others one to rank 0.
pub struct Link {
    pub(super) rank: usize,
    pub(super) address: SocketAddr,
    stream: TcpStream,
    read: Vec<u8>,
    heard: Instant,
    calls: u64,
    /// It has said that it is done.
    left: bool,
    ended: bool,
}

impl Link {
    /// `stream` does not block.
    pub(super) fn new(rank: usize, stream: TcpStream, address: SocketAddr) -> Self {
        // Small messages that should not wait for more; without it they are only later.
        let _ = stream.set_nodelay(true);
        Self { rank, address, stream, read: Vec::new(), heard: Instant::now(), calls: 0, left: false, ended: false }
    }

    /// Whether the other side has closed it. For links on which nothing is awaited.
    pub(super) fn has_ended(&self) -> bool {
        match self.stream.peek(&mut [0]) {
            Ok(n) => n == 0,
            Err(e) => !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    /// Writes a message that is short enough for the socket's buffer.
    pub(super) fn say(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// What has come since.
    fn listen(&mut self) -> Vec<Message> {
        let mut buffer = [0; 4096];
        while !self.ended {
            match self.stream.read(&mut buffer) {
                Ok(0) => self.ended = true,
                Ok(n) => {
                    self.read.extend_from_slice(&buffer[..n]);
                    self.heard = Instant::now();
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.ended = true,
            }
        }
        std::iter::from_fn(|| Message::take(&mut self.read)).collect()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Message {
    /// This rank lives and has made so many calls; from rank 0: that rank has made the fewest.
    Beat { rank: u32, calls: u64 },
    /// A rank is done.
    Left { rank: u32 },
    /// A rank is lost.
    Lost { rank: u32, why: String },
}

impl Message {
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, rank, calls, text) = match self {
            Self::Beat { rank, calls } => (1_u8, rank, *calls, ""),
            Self::Left { rank } => (2, rank, 0, ""),
            Self::Lost { rank, why } => (3, rank, 0, shortened(why, TEXT_LENGTH)),
        };
        let length = u16::try_from(text.len()).unwrap_or(0);
        [&[kind][..], &rank.to_le_bytes(), &calls.to_le_bytes(), &length.to_le_bytes(), text.as_bytes()].concat()
    }

    /// The first message of `bytes`, if it is there as a whole.
    fn take(bytes: &mut Vec<u8>) -> Option<Self> {
        let head = bytes.get(..HEAD)?;
        let number = |range: std::ops::Range<usize>| head[range].iter().rev().fold(0_u64, |n, b| n << 8 | u64::from(*b));
        let (kind, rank, calls, length) = (head[0], number(1..5) as u32, number(5..13), number(13..15) as usize);
        let why = String::from_utf8_lossy(bytes.get(HEAD..HEAD + length)?).into_owned();
        bytes.drain(..HEAD + length);
        Some(match kind {
            1 => Self::Beat { rank, calls },
            2 => Self::Left { rank },
            _ => Self::Lost { rank, why },
        })
    }
}

/// The connections of a rank after the rendezvous, read by a thread of their own. Dropped, it tells the others that this rank is
/// done, or that it panicked.
pub struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    calls: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The first rank that was lost, and why: the cause of what follows.
    lost: Option<(usize, String)>,
    left: Vec<bool>,
    /// Who has made the fewest calls, and how many.
    slowest: (usize, u64),
    /// Whether this rank is done, and waits for the others to be.
    leaving: bool,
    /// This rank's last words.
    farewell: Option<Message>,
}

impl Watch {
    pub(super) fn start(rank: usize, size: usize, links: Vec<Link>) -> Result<Self> {
        let state = State { left: vec![false; size], ..State::default() };
        let shared = Arc::new(Shared { rank, calls: AtomicU64::new(0), state: Mutex::new(state), changed: Condvar::new() });
        let guard = Guard { shared: shared.clone(), links, spoke: Instant::now(), lost: None };
        let thread = std::thread::Builder::new().name("rank watch".into()).spawn(move || guard.run());
        let thread = thread.map_err(|e| Error::Input(format!("rank watch: {e}")))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// An error that names the first rank that was lost.
    pub fn check(&self) -> Result<()> {
        match &self.shared.lock().lost {
            Some((rank, why)) => Err(Error::Input(format!("rank {rank}: {why}"))),
            None => Ok(()),
        }
    }

    /// Waits until a rank is lost, for `limit` at most.
    pub fn wait(&self, limit: Duration) -> Result<()> {
        let state = self.shared.lock();
        let _ = self.shared.changed.wait_timeout_while(state, limit, |state| state.lost.is_none());
        self.check()
    }

    /// Counts a call that all ranks make.
    pub fn count(&self) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// A rank other than this one that is done, if there is one.
    pub fn left(&self) -> Option<usize> {
        self.shared.lock().left.iter().position(|left| *left)
    }

    /// The rank that has made the fewest calls, and their number, as of a second ago.
    pub fn slowest(&self) -> (usize, u64) {
        self.shared.lock().slowest
    }

    /// Tells the others that this rank is done, and waits until all are, or one is lost, for `limit` at most.
    pub fn leave(&self, limit: Duration) {
        let mut state = self.shared.lock();
        state.leaving = true;
        let all_left = |state: &State| (0..).zip(&state.left).all(|(rank, left)| *left || rank == self.shared.rank);
        let waits = |state: &mut State| state.lost.is_none() && !all_left(state);
        drop(self.shared.changed.wait_timeout_while(state, limit, waits));
    }

    /// Tells all others that this rank gives up and why.
    pub fn abandon(&self, why: &str) {
        let rank = u32::try_from(self.shared.rank).unwrap_or(u32::MAX);
        self.shared.lock().farewell.get_or_insert_with(|| Message::Lost { rank, why: why.to_owned() });
        let deadline = Instant::now() + Duration::from_secs(2);
        while self.thread.as_ref().is_some_and(|t| !t.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(TICK / 10);
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let rank = u32::try_from(self.shared.rank).unwrap_or(u32::MAX);
        if std::thread::panicking() {
            self.abandon("panicked");
        } else {
            self.shared.lock().farewell.get_or_insert(Message::Left { rank });
        }
        if let Some(thread) = self.thread.take() {
            // Its panic has been printed.
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watch of rank {}", self.shared.rank)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, rank: usize, why: String) {
        self.lock().lost = Some((rank, why));
        self.changed.notify_all();
    }
}

/// The watch's thread.
struct Guard {
    shared: Arc<Shared>,
    links: Vec<Link>,
    spoke: Instant,
    /// The first rank that was found lost.
    lost: Option<(usize, String)>,
}

impl Guard {
    fn run(mut self) {
        loop {
            self.hear();
            let farewell = self.shared.lock().farewell.clone();
            if let Some(farewell) = farewell {
                self.tell(&farewell, self.shared.rank);
                return self.linger();
            }
            if let Some((rank, why)) = self.lost.take() {
                // First the others: this process may end as soon as it knows.
                let number = u32::try_from(rank).unwrap_or(u32::MAX);
                self.tell(&Message::Lost { rank: number, why: why.clone() }, rank);
                self.shared.lose(rank, why);
                return self.linger();
            }
            self.links.retain(|link| !link.ended);
            if std::mem::take(&mut self.shared.lock().leaving) {
                let rank = u32::try_from(self.shared.rank).unwrap_or(u32::MAX);
                self.tell(&Message::Left { rank }, self.shared.rank);
            }
            self.beat();
            std::thread::sleep(TICK);
        }
    }

    fn hear(&mut self) {
        let mut relayed = Vec::new();
        for link in &mut self.links {
            for message in link.listen() {
                match message {
                    Message::Beat { rank, calls } if self.shared.rank != 0 => self.shared.lock().slowest = (rank as usize, calls),
                    Message::Beat { calls, .. } => link.calls = calls,
                    Message::Left { rank } => {
                        link.left |= rank as usize == link.rank;
                        if let Some(left) = self.shared.lock().left.get_mut(rank as usize) {
                            *left = true;
                        }
                        self.shared.changed.notify_all();
                        relayed.push((message, link.rank));
                    }
                    Message::Lost { rank, why } => {
                        self.lost.get_or_insert((rank as usize, why));
                    }
                }
            }
            if link.left {
                continue;
            }
            if link.ended {
                self.lost.get_or_insert((link.rank, "its connection ended: the process is gone".into()));
            } else if link.heard.elapsed() > SILENCE {
                let silence = SILENCE.as_secs();
                let why = format!("silent for {silence} s: its host is gone, or the process is stopped");
                self.lost.get_or_insert((link.rank, why));
            }
        }
        if self.shared.rank == 0 {
            relayed.iter().for_each(|(message, from)| self.tell(message, *from));
        }
    }

    /// Says it to all but one. Whoever cannot be told is found lost when read.
    fn tell(&mut self, message: &Message, except: usize) {
        let bytes = message.to_bytes();
        for link in self.links.iter_mut().filter(|link| link.rank != except && !link.ended) {
            let _ = link.say(&bytes);
        }
    }

    fn beat(&mut self) {
        if self.spoke.elapsed() < BEAT {
            return;
        }
        self.spoke = Instant::now();
        let mine = (self.shared.rank, self.shared.calls.load(Ordering::Relaxed));
        let mut say = mine;
        if self.shared.rank == 0 {
            let all = self.links.iter().map(|link| (link.rank, link.calls)).chain([mine]);
            say = all.min_by_key(|(rank, calls)| (*calls, *rank)).unwrap_or(mine);
            self.shared.lock().slowest = say;
        }
        self.tell(&Message::Beat { rank: u32::try_from(say.0).unwrap_or(u32::MAX), calls: say.1 }, usize::MAX);
    }

    /// Reads on for a while: a connection closed with bytes unread may take away what was said last.
    fn linger(&mut self) {
        for _ in 0..10 {
            self.links.iter_mut().for_each(|link| drop(link.listen()));
            std::thread::sleep(TICK / 5);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_as_they_were_sent_in_pieces_of_any_length() {
        let messages = [
            Message::Beat { rank: 7, calls: 1 << 40 },
            Message::Left { rank: 0 },
            Message::Lost { rank: u32::MAX, why: "disk full: 0 bytes left, \u{e9}".into() },
            Message::Lost { rank: 1, why: String::new() },
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(Message::to_bytes).collect();
        for piece in [1, 3, 16, bytes.len()] {
            let (mut read, mut found) = (Vec::new(), Vec::new());
            for part in bytes.chunks(piece) {
                read.extend_from_slice(part);
                found.extend(std::iter::from_fn(|| Message::take(&mut read)));
            }
            assert_eq!(found, messages);
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shortened("ab", 5), "ab");
        assert_eq!(shortened("a\u{e9}b", 2), "a");
        let why = "\u{e9}".repeat(TEXT_LENGTH);
        let mut bytes = Message::Lost { rank: 1, why }.to_bytes();
        assert_eq!(Message::take(&mut bytes), Some(Message::Lost { rank: 1, why: "\u{e9}".repeat(TEXT_LENGTH / 2) }));
    }
}
