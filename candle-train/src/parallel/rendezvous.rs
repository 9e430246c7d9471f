//! How ranks find each other where no MPI does it for them: rank 0 listens on the port above `MASTER_PORT`, all others connect,
//! and when every rank has come, rank 0 sends all of them the same 128 bytes, which NCCL needs. The connections then stay
//! open as a [`Watch`].
//!
//! Whoever does not belong to the job (another program, another version, another configuration, a second rank 1) is told so,
//! and the others go on waiting. Nothing here is secret, and nobody proves who he is: as with torchrun's store and NCCL
//! itself, the network between the machines must be the cluster's own.

use super::environment::{Launched, Master};
use super::shortened;
use super::watch::{Link, Watch};
use candle_models::{Error, Result};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

/// What rank 0 gives to every rank: NCCL's identity of a group.
pub type Token = [u8; 128];

const MAGIC: [u8; 8] = *b"candleRV";
/// Of the messages here and in [`Watch`].
const PROTOCOL: u32 = 1;
const VERSION_LENGTH: usize = 32;
const HELLO_LENGTH: usize = 8 + 4 + 4 + 4 + 32 + VERSION_LENGTH;
/// Longest text of an answer.
const TEXT_LENGTH: usize = 1 << 12;
/// How long a connection may take to say who it is.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// Connections that have not said who they are, at most.
const STRANGERS: usize = 256;
const PAUSE: Duration = Duration::from_millis(10);

/// What a rank says first.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Hello {
    size: u32,
    rank: u32,
    configuration: [u8; 32],
    version: String,
}

impl Hello {
    fn new(launched: &Launched, configuration: &str) -> Result<Self> {
        let number = |n: usize| u32::try_from(n).map_err(|_| Error::Input(format!("rendezvous: {n} ranks")));
        Ok(Self {
            size: number(launched.size)?,
            rank: number(launched.rank)?,
            configuration: Sha256::digest(configuration).into(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = [&MAGIC[..], &PROTOCOL.to_le_bytes(), &self.size.to_le_bytes(), &self.rank.to_le_bytes()].concat();
        bytes.extend(self.configuration);
        bytes.extend(self.version.bytes().chain(std::iter::repeat(0)).take(VERSION_LENGTH));
        bytes
    }

    /// `bytes` begin as a hello does and are as long.
    fn from_bytes(bytes: &[u8]) -> Self {
        let number = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, b| n << 8 | u32::from(*b));
        let mut configuration = [0; 32];
        configuration.copy_from_slice(&bytes[20..52]);
        let version = String::from_utf8_lossy(&bytes[52..HELLO_LENGTH]).trim_end_matches('\0').to_owned();
        Self { size: number(12), rank: number(16), configuration, version }
    }

    /// Why rank 0, whose hello this is, does not take `other`.
    fn refusal(&self, other: &Self) -> Option<String> {
        let rank = other.rank;
        if other.version != self.version {
            return Some(format!("rank {rank} is version {:?}, rank 0 {:?}", other.version, self.version));
        }
        if other.size != self.size {
            return Some(format!("rank {rank} counts {} ranks, rank 0 counts {}", other.size, self.size));
        }
        if rank == 0 || rank >= self.size {
            return Some(format!("rank {rank} asks rank 0 of {}", self.size));
        }
        if other.configuration != self.configuration {
            return Some(format!("rank {rank} has another configuration than rank 0"));
        }
        None
    }
}

/// Waits until all ranks of the job have come, for `limit` at most. Rank 0 makes the token, all ranks get it. Every rank gives the
/// same `configuration`.
///
/// # Errors
/// Where ranks did not come, which rank 0's error names and every other's that did come; where rank 0 refused this rank.
pub fn meet(launched: &Launched, configuration: &str, limit: Duration, token: impl FnOnce() -> Result<Token>) -> Result<(Watch, Token)> {
    let hello = Hello::new(launched, configuration)?;
    let master = launched.master.as_ref();
    let master = master.ok_or_else(|| Error::Input("environment: neither MASTER_ADDR nor MASTER_PORT is set: where is rank 0?".into()))?;
    let deadline = Instant::now() + limit;
    if launched.rank == 0 {
        let token = token()?;
        let links = Host { hello, port: master.port + 1, limit, deadline }.gather(&token)?;
        Ok((Watch::start(0, launched.size, links)?, token))
    } else {
        let (link, token) = Guest { hello, master, limit, deadline }.join()?;
        Ok((Watch::start(launched.rank, launched.size, vec![link])?, token))
    }
}

/// Rank 0.
struct Host {
    hello: Hello,
    port: u16,
    limit: Duration,
    deadline: Instant,
}

/// Someone who has connected and not yet said everything.
struct Stranger {
    stream: TcpStream,
    address: SocketAddr,
    said: Vec<u8>,
    since: Instant,
}

impl Host {
    fn gather(&self, token: &Token) -> Result<Vec<Link>> {
        let listener = self.listen()?;
        let mut strangers: Vec<Stranger> = Vec::new();
        let mut links: Vec<Option<Link>> = (1..self.hello.size).map(|_| None).collect();
        let mut refused = Vec::new();
        while links.iter().any(Option::is_none) {
            while let Ok((stream, address)) = listener.accept() {
                let address = SocketAddr::new(address.ip().to_canonical(), address.port());
                if stream.set_nonblocking(true).is_ok() && strangers.len() < STRANGERS {
                    strangers.push(Stranger { stream, address, said: Vec::new(), since: Instant::now() });
                }
            }
            strangers.retain_mut(|stranger| match stranger.read() {
                Said::Partly => true,
                Said::Nothing => false,
                Said::Hello(hello) => {
                    self.welcome(&hello, stranger, &mut links).unwrap_or_else(|why| refused.push(stranger.refuse(&why)));
                    false
                }
                Said::Other(why) => {
                    refused.push(stranger.refuse(&why));
                    false
                }
            });
            // A rank that was here and went may come again.
            for link in &mut links {
                if link.as_ref().is_some_and(Link::has_ended) {
                    *link = None;
                }
            }
            if Instant::now() > self.deadline {
                return Err(self.give_up(links, &refused));
            }
            std::thread::sleep(PAUSE);
        }
        let mut links: Vec<Link> = links.into_iter().flatten().collect();
        for link in &mut links {
            link.say(&answer(Answer::Token, token)).map_err(|e| Error::Input(format!("rendezvous: rank {}: {e}", link.rank)))?;
        }
        Ok(links)
    }

    fn listen(&self) -> Result<TcpListener> {
        let any = [IpAddr::from(Ipv6Addr::UNSPECIFIED), IpAddr::from(Ipv4Addr::UNSPECIFIED)];
        let addresses = any.map(|address| SocketAddr::new(address, self.port));
        let failed = |e| Error::Input(format!("rendezvous: rank 0 cannot listen on port {} (MASTER_PORT + 1): {e}", self.port));
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    fn welcome(&self, hello: &Hello, stranger: &Stranger, links: &mut [Option<Link>]) -> std::result::Result<(), String> {
        if let Some(why) = self.hello.refusal(hello) {
            return Err(why);
        }
        let place = &mut links[hello.rank as usize - 1];
        if let Some(link) = place.as_ref().filter(|link| !link.has_ended()) {
            return Err(format!("rank {} is here already, from {}", hello.rank, link.address));
        }
        let stream = stranger.stream.try_clone().map_err(|e| e.to_string())?;
        *place = Some(Link::new(hello.rank as usize, stream, stranger.address));
        Ok(())
    }

    /// Names those who are missing, to all who are not.
    fn give_up(&self, links: Vec<Option<Link>>, refused: &[String]) -> Error {
        let missing: Vec<String> = (1..).zip(&links).filter(|(_, link)| link.is_none()).map(|(rank, _)| rank.to_string()).collect();
        let s = if missing.len() == 1 { "" } else { "s" };
        let (missing, port, limit) = (missing.join(", "), self.port, self.limit.as_secs_f64());
        let mut why = format!("rank{s} {missing} did not come to port {port} of rank 0 within {limit} s");
        if !refused.is_empty() {
            why += &format!("; refused: {}", refused.join("; "));
        }
        let why = shortened(&why, TEXT_LENGTH);
        for mut link in links.into_iter().flatten() {
            // A rank that cannot be told is gone as well.
            let _ = link.say(&answer(Answer::Refusal, why.as_bytes()));
        }
        Error::Input(format!("rendezvous: {why}"))
    }
}

enum Said {
    Nothing,
    Partly,
    Hello(Hello),
    Other(String),
}

impl Stranger {
    fn read(&mut self) -> Said {
        let mut buffer = [0; HELLO_LENGTH];
        let missing = HELLO_LENGTH - self.said.len();
        match self.stream.read(&mut buffer[..missing]) {
            Ok(0) => return Said::Nothing,
            Ok(n) => self.said.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::WouldBlock || e.kind() == ErrorKind::Interrupted => {}
            Err(_) => return Said::Nothing,
        }
        if let Err(why) = check_head(&self.said) {
            return Said::Other(why);
        }
        if self.said.len() == HELLO_LENGTH {
            return Said::Hello(Hello::from_bytes(&self.said));
        }
        if self.since.elapsed() > INTRODUCTION {
            return Said::Other(format!("said {} of {HELLO_LENGTH} bytes within {} s", self.said.len(), INTRODUCTION.as_secs()));
        }
        Said::Partly
    }

    /// Tells it and the log; returns the log's line.
    fn refuse(&mut self, why: &str) -> String {
        // It may be gone, or not listen: the log has it.
        let _ = self.stream.write_all(&answer(Answer::Refusal, why.as_bytes()));
        let line = format!("{}: {why}", self.address);
        eprintln!("warning: rendezvous: refused {line}");
        line
    }
}

/// Checks what every message begins with, as far as it is there.
fn check_head(said: &[u8]) -> std::result::Result<(), String> {
    let n = said.len().min(MAGIC.len());
    if said[..n] != MAGIC[..n] {
        return Err(format!("no rank of candle-train: it begins with \"{}\"", said[..said.len().min(16)].escape_ascii()));
    }
    if said.len() >= 12 && said[8..12] != PROTOCOL.to_le_bytes() {
        return Err("speaks another version of the rendezvous: the ranks' programs differ".into());
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Token = 1,
    Refusal = 2,
}

const ANSWER_HEAD: usize = 8 + 4 + 1 + 2;

fn answer(kind: Answer, body: &[u8]) -> Vec<u8> {
    let body = &body[..body.len().min(TEXT_LENGTH)];
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    [&MAGIC[..], &PROTOCOL.to_le_bytes(), &[kind as u8], &length.to_le_bytes(), body].concat()
}

/// Any other rank.
struct Guest<'a> {
    hello: Hello,
    master: &'a Master,
    limit: Duration,
    deadline: Instant,
}

/// What a guest may try again, and what not.
enum Failure {
    Again(String),
    Final(String),
}

impl Guest<'_> {
    fn join(&self) -> Result<(Link, Token)> {
        let port = self.master.port + 1;
        let place = format!("{}:{port}", self.master.host);
        loop {
            let why = match self.attempt(port) {
                Ok(joined) => return Ok(joined),
                Err(Failure::Final(why)) => return Err(Error::Input(format!("rendezvous: {place}: {why}"))),
                Err(Failure::Again(why)) => why,
            };
            if Instant::now() > self.deadline {
                let (rank, limit) = (self.hello.rank, self.limit.as_secs_f64());
                return Err(Error::Input(format!("rendezvous: rank {rank} did not reach rank 0 at {place} within {limit} s: {why}")));
            }
            std::thread::sleep(PAUSE * 10);
        }
    }

    fn attempt(&self, port: u16) -> std::result::Result<(Link, Token), Failure> {
        let again = |e: std::io::Error| Failure::Again(e.to_string());
        let addresses = (self.master.host.as_str(), port).to_socket_addrs().map_err(again)?;
        let mut connected = Err(Failure::Again("no address".into()));
        for address in addresses {
            connected = TcpStream::connect_timeout(&address, Duration::from_secs(3)).map_err(again).map(|stream| (stream, address));
            if connected.is_ok() {
                break;
            }
        }
        let (mut stream, address) = connected?;
        stream.write_all(&self.hello.to_bytes()).map_err(again)?;
        // Rank 0 answers when all have come, or names the missing; only if it is stopped does this rank's own clock count.
        let left = self.deadline.saturating_duration_since(Instant::now()) + Duration::from_secs(10);
        stream.set_read_timeout(Some(left)).map_err(again)?;
        let (kind, body) = read_answer(&mut stream)?;
        stream.set_nonblocking(true).map_err(again)?;
        if kind != Answer::Token as u8 {
            return Err(Failure::Final(String::from_utf8_lossy(&body).into_owned()));
        }
        let token = body.try_into().map_err(|_| Failure::Final("a token of another length".into()))?;
        Ok((Link::new(0, stream, address), token))
    }
}

fn read_answer(stream: &mut TcpStream) -> std::result::Result<(u8, Vec<u8>), Failure> {
    let mut said = Vec::new();
    let mut needed = ANSWER_HEAD;
    while said.len() < needed {
        let mut buffer = [0; 256];
        let n = (needed - said.len()).min(buffer.len());
        match stream.read(&mut buffer[..n]) {
            Ok(0) => return Err(Failure::Again("rank 0 ended the connection".into())),
            Ok(n) => said.extend_from_slice(&buffer[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Err(Failure::Again("rank 0 is there and does not answer".into()));
            }
            Err(e) => return Err(Failure::Again(e.to_string())),
        }
        check_head(&said).map_err(Failure::Final)?;
        if said.len() == ANSWER_HEAD {
            needed += usize::from(u16::from_le_bytes([said[13], said[14]]));
        }
    }
    Ok((said[12], said.split_off(ANSWER_HEAD)))
}
