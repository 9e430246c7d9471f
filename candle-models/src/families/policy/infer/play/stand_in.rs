//! `candle-infer playback`: a stand-in for Slippi Dolphin. It serves recorded games to spectators at the pace of a game and reads a
//! controller's pipe, but what is pressed changes nothing.

use super::SERVER;
use super::pad::Commands;
use crate::Error;
use crate::families::policy::actions::Action;
use crate::families::policy::replay::{self, FRAME_END, GAME_END, GAME_START, HEADER_BYTES, Sizes};
use crate::infer::line;
use anyhow::{Result, anyhow, bail};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use rusty_enet::{Event, Host, HostSettings, Packet, PeerID};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::net::UdpSocket;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Events behind which Dolphin sends a message: parts of long events, the start and end of a game, the end of a frame.
const SENT: [u8; 4] = [PART, GAME_START, GAME_END, FRAME_END];
const PART: u8 = 0x10;

/// How many spectators Dolphin serves at once.
const SPECTATORS: usize = 4;

/// The longest time between two looks at the network and the pipe.
const LOOK: Duration = Duration::from_millis(1);

/// How long spectators have at the end to take what was sent.
const FAREWELL: Duration = Duration::from_secs(5);

/// Options of `playback`.
#[derive(Args)]
pub struct StandIn {
    /// Where to listen; port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT", default_value = SERVER)]
    server: String,
    /// Named pipe of a controller to read; it is made if it is not there.
    #[arg(long, value_name = "PIPE")]
    pipe: Option<PathBuf>,
    /// Frames per second; 0 is as fast as they are taken, with --pipe one for each state of the controller.
    #[arg(long, value_name = "HZ", default_value = "60", value_parser = clap::value_parser!(u32).range(0..=10_000))]
    rate: u32,
    /// Cut the connection every so many frames, to see that spectators come back.
    #[arg(long, value_name = "FRAMES", value_parser = clap::value_parser!(u64).range(1..))]
    cut: Option<u64>,
    /// Write every state of the controller that counted to FILE.jsonl.
    #[arg(long, value_name = "FILE", requires = "pipe")]
    out: Option<PathBuf>,
}

/// The payloads of a game's messages, each with the number of the frame that it ends.
type Messages = Vec<(Vec<u8>, Option<i32>)>;

impl StandIn {
    /// Plays games back, from when the first spectator has come, and ends when all have taken everything.
    pub fn run(&self, recordings: &[PathBuf]) -> Result<()> {
        let games = recordings.iter().map(|path| messages(path)).collect::<Result<Vec<Messages>>>()?;
        let mut server = Server::open(&self.server)?;
        let mut pad = self.pipe.as_deref().map(|path| PadReader::open(path, self.out.as_deref())).transpose()?;
        line(format_args!("listening on {}", server.address))?;
        server.wait_for_one()?;
        let mut frames = 0;
        for (game, path) in games.into_iter().zip(recordings) {
            line(format_args!("{}: {} messages", path.display(), game.len()))?;
            server.start();
            self.play(game, &mut server, &mut pad, &mut frames)?;
            server.end(false);
            server.work(Duration::ZERO)?;
        }
        server.end(true);
        server.farewell()?;
        line(format_args!("{frames} frames played back"))?;
        pad.map_or(Ok(()), PadReader::finish)
    }

    fn play(&self, game: Messages, server: &mut Server, pad: &mut Option<PadReader>, frames: &mut u64) -> Result<()> {
        let mut due = Instant::now();
        for (payload, frame) in game {
            if let Some(pad) = pad {
                pad.read()?;
            }
            server.send(&payload);
            server.work(Duration::ZERO)?;
            let Some(id) = frame else { continue };
            *frames += 1;
            if self.cut.is_some_and(|cut| frames.is_multiple_of(cut)) {
                server.cut();
            }
            if self.rate == 0 {
                server.wait_for_one()?;
            }
            let states = pad.as_mut().map(|pad| {
                pad.frame = id;
                pad.states
            });
            due += Duration::from_secs(1).checked_div(self.rate).unwrap_or_default();
            loop {
                if let Some(pad) = pad {
                    pad.read()?;
                }
                let answered = pad.as_ref().map(|pad| pad.states) != states || pad.is_none();
                let now = Instant::now();
                if now >= due && (self.rate > 0 || answered) {
                    break;
                }
                server.work(LOOK.min(due.saturating_duration_since(now).max(LOOK / 10)))?;
            }
        }
        Ok(())
    }
}

/// The messages of a recording, as Dolphin would have sent them.
fn messages(path: &Path) -> Result<Messages> {
    let file = replay::bytes(path)?;
    // Everything that can be wrong with it is known to the reader.
    let version = replay::read_bytes(&file, path)?.version;
    if version < (3, 0, 0) {
        let (major, minor, patch) = version;
        bail!("{}: format {major}.{minor}.{patch} does not mark the end of a frame: 3.0 or later is needed", path.display());
    }
    let (mut sizes, mut messages, mut start, mut at) = (Sizes::default(), Messages::new(), HEADER_BYTES, HEADER_BYTES);
    while let Some(length) = sizes.event(&file[at..]).map_err(|reason| Error::file(path, reason))? {
        let event = &file[at..at + length];
        if at == HEADER_BYTES {
            sizes.learn(event).map_err(|reason| Error::file(path, reason))?;
        }
        at += length;
        if SENT.contains(&event[0]) {
            let id = event.get(1..5).and_then(|id| id.try_into().ok()).map(i32::from_be_bytes);
            messages.push((file[start..at].to_vec(), id.filter(|_| event[0] == FRAME_END)));
            start = at;
        }
        if event[0] == GAME_END {
            break;
        }
    }
    Ok(messages)
}

/// The side of the network.
struct Server {
    host: Host<UdpSocket>,
    address: std::net::SocketAddr,
    spectators: BTreeMap<PeerID, Spectator>,
    /// The messages of the game that is on or was on last, and the cursor of the first of them.
    buffer: Vec<String>,
    offset: usize,
    playing: bool,
}

#[derive(Default)]
struct Spectator {
    greeted: bool,
    /// How many messages of the buffer it was sent.
    sent: usize,
}

impl Server {
    fn open(address: &str) -> Result<Self> {
        let socket = UdpSocket::bind(address).map_err(Error::io(address))?;
        let bound = socket.local_addr().map_err(Error::io(address))?;
        let settings = HostSettings { peer_limit: SPECTATORS, channel_limit: 2, ..HostSettings::default() };
        let host = Host::new(socket, settings).map_err(|e| anyhow!("{address}: {e}"))?;
        Ok(Self { host, address: bound, spectators: BTreeMap::new(), buffer: Vec::new(), offset: 0, playing: false })
    }

    fn start(&mut self) {
        self.offset += self.buffer.len();
        self.buffer.clear();
        self.spectators.values_mut().for_each(|spectator| spectator.sent = 0);
        self.playing = true;
        self.push(json!({ "type": "start_game" }));
    }

    fn send(&mut self, payload: &[u8]) {
        self.push(json!({ "type": "game_event", "payload": BASE64_STANDARD.encode(payload) }));
    }

    fn end(&mut self, closed: bool) {
        self.push(json!({ "type": "end_game", "dolphin_closed": closed }));
        self.playing = false;
    }

    fn push(&mut self, mut message: Value) {
        let cursor = self.offset + self.buffer.len();
        message["cursor"] = cursor.into();
        message["next_cursor"] = (cursor + 1).into();
        self.buffer.push(message.to_string());
    }

    /// Sends what is to be sent, waits so long for what comes, and takes it.
    fn work(&mut self, wait: Duration) -> Result<()> {
        for (id, spectator) in self.spectators.iter_mut().filter(|(_, spectator)| spectator.greeted) {
            let peer = self.host.peer_mut(*id);
            for message in &self.buffer[spectator.sent..] {
                // A spectator that is leaving takes nothing more, and is forgotten with the next event.
                if peer.send(0, &Packet::reliable(message.as_bytes())).is_err() {
                    break;
                }
                spectator.sent += 1;
            }
        }
        self.service()?;
        if !wait.is_zero() {
            std::thread::sleep(wait);
            self.service()?;
        }
        Ok(())
    }

    fn service(&mut self) -> Result<()> {
        let mut requests = Vec::new();
        while let Some(event) = self.host.service().map_err(Error::io(self.address.to_string()))? {
            match event {
                Event::Connect { peer, .. } => drop(self.spectators.insert(peer.id(), Spectator::default())),
                Event::Disconnect { peer, .. } => drop(self.spectators.remove(&peer.id())),
                Event::Receive { peer, packet, .. } => requests.push((peer.id(), packet.data().to_vec())),
            }
        }
        requests.into_iter().try_for_each(|(id, request)| self.greet(id, &request))
    }

    /// Answers a spectator's request for messages from a cursor on. What is no request is not answered.
    fn greet(&mut self, id: PeerID, request: &[u8]) -> Result<()> {
        let request: Value = serde_json::from_slice(request).unwrap_or_default();
        let (Some(spectator), Some(cursor)) = (self.spectators.get_mut(&id), request["cursor"].as_u64()) else { return Ok(()) };
        if request["type"] != "connect_request" {
            return Ok(());
        }
        let wanted = usize::try_from(cursor).ok().and_then(|cursor| cursor.checked_sub(self.offset));
        // What is not to be had any more, or not yet, begins with the game that is on.
        spectator.sent = wanted.filter(|sent| *sent <= self.buffer.len()).unwrap_or(0);
        let reply = json!({ "type": "connect_reply", "nick": "playback", "version": "3.4.0", "cursor": self.offset + spectator.sent });
        spectator.greeted = true;
        self.host.peer_mut(id).send(0, &Packet::reliable(reply.to_string().as_bytes()))?;
        Ok(())
    }

    /// Waits until there is a spectator.
    fn wait_for_one(&mut self) -> Result<()> {
        while !self.spectators.values().any(|spectator| spectator.greeted) {
            self.work(LOOK)?;
        }
        Ok(())
    }

    fn cut(&mut self) {
        for (id, _) in std::mem::take(&mut self.spectators) {
            self.host.peer_mut(id).disconnect_now(0);
        }
    }

    /// Waits until every spectator has everything, those that come back too.
    fn farewell(&mut self) -> Result<()> {
        let until = Instant::now() + FAREWELL;
        let (mut left, mut served) = (BTreeSet::new(), false);
        while (!served || !self.spectators.is_empty()) && Instant::now() < until {
            self.work(LOOK)?;
            for (id, _) in self.spectators.iter().filter(|(_, spectator)| spectator.greeted) {
                if left.insert(*id) {
                    self.host.peer_mut(*id).disconnect_later(0);
                }
            }
            served |= !left.is_empty();
            left.retain(|id| self.spectators.contains_key(id));
        }
        Ok(())
    }
}

/// Reads a controller.
struct PadReader {
    path: PathBuf,
    pipe: File,
    commands: Commands,
    /// What is left of a line that is not complete.
    rest: Vec<u8>,
    out: Option<(PathBuf, File)>,
    /// The frame that was sent last.
    frame: i32,
    states: u64,
    neutral: u64,
    wrong: u64,
}

impl PadReader {
    fn open(path: &Path, out: Option<&Path>) -> Result<Self> {
        if !path.exists() {
            let name = CString::new(path.as_os_str().as_bytes())?;
            // SAFETY: a name that ends in a zero.
            if unsafe { libc::mkfifo(name.as_ptr(), 0o600) } != 0 {
                return Err(Error::io(path)(std::io::Error::last_os_error()).into());
            }
        }
        // Neither a writer that is not there yet nor one that writes nothing is waited for.
        let pipe = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(Error::io(path))?;
        let out = out.map(|out| Ok::<_, Error>((out.to_owned(), File::create(out).map_err(Error::io(out))?))).transpose()?;
        let (commands, rest) = (Commands::default(), Vec::new());
        Ok(Self { path: path.to_owned(), pipe, commands, rest, out, frame: 0, states: 0, neutral: 0, wrong: 0 })
    }

    /// Takes what has been written.
    fn read(&mut self) -> Result<()> {
        let mut piece = [0; 4096];
        loop {
            match self.pipe.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(count) => self.take(&piece[..count])?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(Error::io(&self.path)(error).into()),
            }
        }
    }

    fn take(&mut self, piece: &[u8]) -> Result<()> {
        self.rest.extend_from_slice(piece);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let command: Vec<u8> = self.rest.drain(..=end).collect();
            match self.commands.take(&String::from_utf8_lossy(&command)) {
                Ok(None) => {}
                Ok(Some(controller)) => self.state(Action::from_controller(&controller))?,
                Err(_) => self.wrong += 1,
            }
        }
        Ok(())
    }

    fn state(&mut self, action: Action) -> Result<()> {
        self.states += 1;
        self.neutral += u64::from(action == Action::default());
        if let Some((path, out)) = &mut self.out {
            writeln!(out, "{}", json!({ "after": self.frame, "pressed": action.to_string() })).map_err(Error::io(path))?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.read()?;
        let Self { path, states, neutral, wrong, .. } = self;
        Ok(line(format_args!("{}: {states} states, {neutral} of them neutral, {wrong} lines that are no command", path.display()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::simulation::simulate;

    #[test]
    fn a_game_in_an_archive_is_played_back_too() {
        let directory = tempfile::tempdir().unwrap();
        let (game, archive) = (directory.path().join("g.slp"), directory.path().join("games.tar"));
        replay::write(&simulate(1, 60), &game).unwrap();
        let mut builder = tar::Builder::new(File::create(&archive).unwrap());
        builder.append_path_with_name(&game, "g.slp").unwrap();
        builder.finish().unwrap();
        let [alone, member] = [&game, &archive.join("g.slp")].map(|path| messages(path).unwrap());
        assert!(alone == member && alone.len() > 60);
    }
}
