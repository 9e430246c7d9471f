//! Slippi Dolphin's stream for spectators: JSON messages over ENet, with a game's events in base64.

use super::{After, Happening, Input};
use crate::Error;
use crate::families::policy::replay::PAYLOADS;
use anyhow::{Result, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rusty_enet::{Event, Host, HostSettings, Packet};
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

/// An answer to an attempt to connect takes no longer.
const CONNECTING: Duration = Duration::from_secs(1);

/// Between two attempts, at first and at most; doubled each time.
const BACKOFF: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(2)];

/// Without an acknowledgement for so many milliseconds, the shortest and the longest time that ENet waits, a server counts as gone.
const SILENT_MS: [u32; 2] = [1000, 3000];

/// The largest message: a game's settings take a tenth of it.
const MAX_MESSAGE: usize = 1 << 20;

/// A connection to Dolphin that comes back after it was lost.
pub struct Spectator {
    address: SocketAddr,
    timeout: Duration,
    link: Option<Link>,
    backoff: Duration,
    /// When to connect next.
    next: Instant,
    /// When something last made sense.
    sense: Instant,
    /// The message to go on from.
    cursor: u64,
    games: usize,
    /// Whether the messages from the cursor on go on with a game.
    playing: bool,
}

struct Link {
    host: Host<UdpSocket>,
    since: Instant,
    connected: bool,
    /// Whether the server has answered, and not with nonsense since.
    sensible: bool,
    /// Whether the user knows of nonsense in this connection.
    told: bool,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    cursor: Option<u64>,
    next_cursor: Option<u64>,
    #[serde(borrow)]
    payload: Option<Cow<'a, str>>,
    dolphin_closed: Option<bool>,
}

impl Spectator {
    /// Will connect to a server `HOST:PORT`, which need not be there yet.
    ///
    /// # Errors
    /// If the name has no address.
    pub fn new(server: &str, timeout: Duration) -> Result<Self> {
        let found = server.to_socket_addrs().map_err(Error::io(server))?.find(SocketAddr::is_ipv4);
        let Some(address) = found else { bail!("{server}: no IPv4 address") };
        let now = Instant::now();
        let [backoff, _] = BACKOFF;
        Ok(Self { address, timeout, link: None, backoff, next: now, sense: now, cursor: 0, games: 0, playing: false })
    }

    fn connect(&mut self) -> Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).map_err(Error::io("UDP socket"))?;
        let settings = HostSettings { peer_limit: 1, channel_limit: 1, ..HostSettings::default() };
        let mut host = Host::new(socket, settings).map_err(|e| anyhow::anyhow!("UDP socket: {e}"))?;
        host.set_maximum_packet_size(MAX_MESSAGE)?;
        let peer = host.connect(self.address, 1, 0)?;
        peer.set_timeout(0, SILENT_MS[0], SILENT_MS[1]);
        self.link = Some(Link { host, since: Instant::now(), connected: false, sensible: false, told: false });
        Ok(())
    }

    /// Forgets the connection, and tells of it unless it never was one.
    fn lose(&mut self, reason: &str, happened: &mut Vec<Happening>) {
        let Some(link) = self.link.take() else { return };
        if link.connected {
            happened.push(Happening::Lost(format!("{}: {reason}; connecting again", self.address)));
        }
        self.next = Instant::now() + self.backoff;
        self.backoff = (self.backoff * 2).min(BACKOFF[1]);
    }

    /// Lets ENet work, and takes every message that is there.
    fn service(&mut self, happened: &mut Vec<Happening>) {
        loop {
            let Some(link) = &mut self.link else { return };
            match link.host.service() {
                Ok(None) => return,
                Ok(Some(Event::Connect { peer, .. })) => {
                    let request = json!({ "type": "connect_request", "cursor": self.cursor }).to_string();
                    let sent = peer.send(0, &Packet::reliable(request.as_bytes()));
                    link.connected = true;
                    if let Err(error) = sent {
                        self.lose(&error.to_string(), happened);
                    }
                }
                Ok(Some(Event::Disconnect { .. })) => self.lose("the connection is lost", happened),
                Ok(Some(Event::Receive { packet, .. })) => self.message(packet.data(), happened),
                Err(error) => self.lose(&error.to_string(), happened),
            }
        }
    }

    fn message(&mut self, bytes: &[u8], happened: &mut Vec<Happening>) {
        let taken = serde_json::from_slice(bytes)
            .map_err(|_| "a message that is no JSON object with a type")
            .and_then(|message| self.take(&message, happened));
        let Some(link) = &mut self.link else { return };
        link.sensible = taken.is_ok();
        match taken {
            Ok(()) => (self.sense, self.backoff) = (Instant::now(), BACKOFF[0]),
            Err(reason) if !link.told => {
                link.told = true;
                happened.push(Happening::Note(format!("{}: {reason}: is this Slippi?", self.address)));
            }
            Err(_) => {}
        }
    }

    fn take(&mut self, message: &Message, happened: &mut Vec<Happening>) -> Result<(), &'static str> {
        match &*message.r#type {
            "connect_reply" => {
                // The server has no such message: another game is on, or another server.
                if message.cursor != Some(self.cursor) {
                    self.leave(None, happened);
                }
                self.cursor = message.cursor.unwrap_or(self.cursor);
            }
            "start_game" => self.leave(None, happened),
            "end_game" => {
                self.leave(None, happened);
                if message.dolphin_closed == Some(true) {
                    happened.push(Happening::Over);
                }
            }
            "game_event" => self.game_event(message, happened)?,
            // Menus, and what later versions may tell.
            _ => return Ok(()),
        }
        if let Some(next) = message.next_cursor {
            self.cursor = next;
        }
        Ok(())
    }

    fn game_event(&mut self, message: &Message, happened: &mut Vec<Happening>) -> Result<(), &'static str> {
        let payload = message.payload.as_deref().ok_or("a game event without a payload")?;
        let bytes = BASE64_STANDARD.decode(payload).map_err(|_| "a payload that is no base64")?;
        if bytes.first() == Some(&PAYLOADS) {
            self.leave(None, happened);
            self.games += 1;
            self.playing = true;
            happened.push(Happening::Begins(format!("{} game {}", self.address, self.games)));
        } else if message.cursor.is_some_and(|cursor| cursor != self.cursor) {
            self.leave(Some("messages are missing"), happened);
        }
        if self.playing {
            happened.push(Happening::Events(bytes));
        }
        Ok(())
    }

    fn leave(&mut self, reason: Option<&str>, happened: &mut Vec<Happening>) {
        if std::mem::take(&mut self.playing) {
            happened.push(Happening::Breaks(reason.map(str::to_owned)));
        }
    }

    fn give_up(&self) -> Result<()> {
        if self.sense.elapsed() < self.timeout {
            return Ok(());
        }
        let seconds = self.timeout.as_secs();
        bail!(
            "{}: no answer of Slippi for {seconds} s: is Dolphin running, with spectating enabled? (--timeout waits longer)",
            self.address
        )
    }
}

/// Waits until the socket can be read; tells when it could, or the wait was over.
fn wait(socket: &UdpSocket, wait: Duration) -> Instant {
    let mut polled = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, which outlives the call. Whatever comes back, the socket is looked at next.
    unsafe { libc::poll(&raw mut polled, 1, wait.as_millis() as libc::c_int) };
    Instant::now()
}

impl Input for Spectator {
    fn receive(&mut self, longest: Duration, happened: &mut Vec<Happening>) -> Result<Instant> {
        self.give_up()?;
        let now = Instant::now();
        if self.link.is_none() && now >= self.next {
            self.connect()?;
        }
        let Some(link) = &mut self.link else {
            std::thread::sleep(longest.min(self.next - now));
            return Ok(Instant::now());
        };
        if link.sensible {
            self.sense = now;
        }
        // What is to be sent goes out before the wait.
        if !link.connected {
            link.host.flush();
        }
        let began = wait(link.host.socket(), longest);
        let late = !link.connected && link.since.elapsed() > CONNECTING;
        self.service(happened);
        if late {
            self.lose("no answer", happened);
        }
        Ok(began)
    }

    fn game_over(&mut self) -> After {
        self.playing = false;
        After::Another
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(spectator: &mut Spectator, messages: &[&str]) -> Vec<Happening> {
        let mut happened = Vec::new();
        messages.iter().for_each(|message| spectator.message(message.as_bytes(), &mut happened));
        happened
    }

    fn event(cursor: u64, payload: &str) -> String {
        format!(r#"{{"type":"game_event","cursor":{cursor},"next_cursor":{},"payload":"{payload}"}}"#, cursor + 1)
    }

    #[test]
    fn nonsense_is_told_of_once_and_counts_as_no_answer() {
        let mut spectator = Spectator::new("127.0.0.1:9", Duration::from_secs(1)).unwrap();
        spectator.connect().unwrap();
        let nonsense =
            ["", "hello", "[]", "7", "{}", r#"{"type":3}"#, r#"{"type":"game_event"}"#, r#"{"type":"game_event","payload":"*"}"#];
        let told = take(&mut spectator, &nonsense);
        assert!(matches!(&told[..], [Happening::Note(text)] if text.contains("is this Slippi?")), "{told:?}");
        assert!(!spectator.link.as_ref().unwrap().sensible);
        assert_eq!(take(&mut spectator, &[r#"{"type":"menu_event","payload":"AA=="}"#, r#"{"type":"connect_reply","cursor":0}"#]), []);
        assert!(spectator.link.as_ref().unwrap().sensible);
    }

    #[test]
    fn a_game_with_a_gap_is_given_up_and_the_next_one_begins() {
        let mut spectator = Spectator::new("127.0.0.1:9", Duration::from_secs(1)).unwrap();
        spectator.connect().unwrap();
        let first = BASE64_STANDARD.encode([PAYLOADS, 1]);
        let name = |n: u32| Happening::Begins(format!("127.0.0.1:9 game {n}"));
        let (begins, goes_on) = (Happening::Events(vec![PAYLOADS, 1]), Happening::Events(vec![0]));
        assert_eq!(take(&mut spectator, &[&event(4, &first), &event(5, "AA==")]), [name(1), begins, goes_on]);
        let missing = Happening::Breaks(Some("messages are missing".to_owned()));
        assert_eq!(take(&mut spectator, &[&event(7, "AA=="), &event(8, "AA==")]), [missing]);
        let found = take(&mut spectator, &[r#"{"type":"start_game","cursor":9,"next_cursor":10}"#, &event(10, &first)]);
        assert_eq!(found, [name(2), Happening::Events(vec![PAYLOADS, 1])]);
        // Connected again where it was, the game goes on; elsewhere, it is another.
        assert_eq!(take(&mut spectator, &[r#"{"type":"connect_reply","cursor":11}"#]), []);
        assert_eq!(take(&mut spectator, &[r#"{"type":"connect_reply","cursor":0}"#]), [Happening::Breaks(None)]);
        let closed = r#"{"type":"end_game","cursor":0,"next_cursor":1,"dolphin_closed":true}"#;
        assert_eq!(take(&mut spectator, &[closed]), [Happening::Over]);
    }
}
