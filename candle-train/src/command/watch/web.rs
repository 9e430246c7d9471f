//! A page on which any number of people watch and one plays.
//!
//! The thread that calls [`serve`] plays the game, at its own pace; another one has all sockets. Between them lies the last frame, which each
//! socket sends when it can: one that is slow misses frames, and delays neither the game nor the others.

use super::show::Show;
use super::{Hand, person};
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::State;
use axum::extract::ws::{Message, Utf8Bytes, WebSocket, WebSocketUpgrade};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use candle_envs::{Scene, Shape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};
use tokio::sync::{oneshot, watch};

const PAGE: &str = include_str!("web.html");
/// How long the end of an episode is to be seen.
const END: Duration = Duration::from_millis(1500);
/// How long a move of a game of two is to be seen before a person is answered.
const ANSWER: Duration = Duration::from_millis(300);
/// Bytes of a message: names of keys that are held.
const MESSAGE: usize = 4096;
/// Messages that a game hears between two frames when it is late.
const HEARD: usize = 64;
/// How long a socket may take nothing before it is closed, and the seat of who played there free again.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a page may ask for.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
enum Asked {
    /// A new game with the one who asks in that seat.
    Play { seat: usize },
    /// The seat is free again.
    Leave,
    /// A move at a place of the scene.
    Click { x: f32, y: f32 },
    /// A move by its number, from 1.
    Move { number: usize },
    /// The keys that are held now, by their names in lower case, the one that was pressed last at the end.
    Keys { down: Vec<String> },
}

enum What {
    Came,
    Went,
    Asked(Asked),
}

/// What the game is told, and where it answers.
struct Told {
    page: u64,
    what: What,
    answer: oneshot::Sender<Result<(), String>>,
}

/// What a page is told first.
#[derive(Clone, Serialize)]
struct Hello {
    r#type: &'static str,
    /// The number of the page, from 1.
    you: u64,
    env: String,
    about: &'static str,
    /// The names of the seats.
    seats: &'static [&'static str],
    /// Whether moves are clicked.
    clicks: bool,
    /// Which keys play, in words.
    keys: Option<&'static str>,
}

/// What all pages are told of a frame.
#[derive(Serialize)]
struct Seen<'a> {
    r#type: &'static str,
    /// Counts frames.
    number: u64,
    scene: &'a Scene,
    /// What a search found, to be drawn over the scene.
    marks: &'a [Shape],
    line: &'a str,
    search: Option<&'a str>,
    /// The page whose person plays, and its seat.
    player: Option<u64>,
    seat: Option<usize>,
    /// Whether the game waits for that person's move.
    waits: bool,
    ended: bool,
}

#[derive(Serialize)]
struct Refused<'a> {
    r#type: &'static str,
    message: &'a str,
}

/// Serves the page and plays, until the process is ended.
///
/// # Errors
/// If the address cannot be had, or the environment or a network fails.
pub fn serve(show: &mut Show, about: &'static str, address: SocketAddr) -> Result<()> {
    let listener = TcpListener::bind(address).with_context(|| address.to_string())?;
    listener.set_nonblocking(true)?;
    let (told, tell) = (mpsc::channel(), watch::channel(Utf8Bytes::default()));
    let spec = show.spec();
    let (clicks, keys) = (person::is_clicked(spec), person::keys(spec));
    let hello = Hello { r#type: "hello", you: 0, env: spec.name.to_string(), about, seats: show.seats(), clicks, keys };
    let mut out = std::io::stdout().lock();
    writeln!(out, "http://{} shows {}; Ctrl-C ends", listener.local_addr()?, hello.env)?;
    out.flush()?;
    drop(out);
    let door = Door { tell: told.0, frames: tell.1, pages: Arc::new(AtomicU64::new(1)), hello };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("page".to_owned()).spawn(move || runtime.block_on(door.open(listener)))?;
    let mut table = Table { show, pages: BTreeSet::new(), player: None, keys: Vec::new(), chosen: None, last: None, number: 0 };
    table.play(&told.1, &tell.0)
}

/// What every socket knows.
#[derive(Clone)]
struct Door {
    tell: mpsc::Sender<Told>,
    frames: watch::Receiver<Utf8Bytes>,
    /// The number of the next page.
    pages: Arc<AtomicU64>,
    hello: Hello,
}

impl Door {
    async fn open(self, listener: TcpListener) -> std::io::Result<()> {
        let pages = Router::new().route("/", get(|| async { Html(PAGE) })).route("/socket", get(socket)).with_state(self);
        axum::serve(tokio::net::TcpListener::from_std(listener)?, pages).await
    }

    /// Tells the game something of a page, and gives its answer.
    async fn told(&self, page: u64, what: What) -> Result<(), String> {
        let (answer, answered) = oneshot::channel();
        let over = || "the game is over".to_owned();
        self.tell.send(Told { page, what, answer }).map_err(|_| over())?;
        answered.await.map_err(|_| over())?
    }

    async fn attend(self, mut socket: WebSocket) {
        let page = self.pages.fetch_add(1, Ordering::Relaxed);
        let hello = Hello { you: page, ..self.hello.clone() };
        let mut frames = self.frames.clone();
        if send(&mut socket, json(&hello)).await && self.told(page, What::Came).await.is_ok() {
            loop {
                let text = tokio::select! {
                    changed = frames.changed() => match changed {
                        Ok(()) => Some(frames.borrow_and_update().clone()),
                        Err(_) => break,
                    },
                    received = socket.recv() => match received {
                        Some(Ok(Message::Text(text))) => self.asked(page, &text).await,
                        Some(Ok(Message::Binary(_))) => Some(refused("expected a message as text")),
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => None,
                        Some(Ok(Message::Close(_)) | Err(_)) | None => break,
                    },
                };
                if let Some(text) = text
                    && !send(&mut socket, text).await
                {
                    break;
                }
            }
        }
        // A game that is over does not care.
        let _ = self.told(page, What::Went).await;
    }

    /// What a page is told of what it asks for: nothing where it is done.
    async fn asked(&self, page: u64, text: &str) -> Option<Utf8Bytes> {
        let answer = match serde_json::from_str(text) {
            Ok(asked) => self.told(page, What::Asked(asked)).await,
            Err(error) => Err(format!("a message that means nothing: {error}")),
        };
        answer.err().map(|why| refused(&why))
    }
}

async fn socket(State(door): State<Door>, headers: HeaderMap, upgrade: WebSocketUpgrade) -> Response {
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok());
    // A page of another place has no business here; a program that is no browser says nothing of where it is from.
    let own = |origin: &str| origin.split_once("://").map(|(_, host)| host) == header(header::HOST);
    if !header(header::ORIGIN).is_none_or(own) {
        return StatusCode::FORBIDDEN.into_response();
    }
    upgrade.max_message_size(MESSAGE).on_upgrade(|socket| door.attend(socket))
}

/// Whether it was sent.
async fn send(socket: &mut WebSocket, text: Utf8Bytes) -> bool {
    matches!(tokio::time::timeout(PATIENCE, socket.send(Message::Text(text))).await, Ok(Ok(())))
}

fn json(value: &impl Serialize) -> Utf8Bytes {
    // Texts, numbers and lists of them are always JSON; of a number that is none it makes null.
    serde_json::to_string(value).unwrap_or_default().into()
}

fn refused(message: &str) -> Utf8Bytes {
    json(&Refused { r#type: "error", message })
}

/// The game, and who is there.
struct Table<'a> {
    show: &'a mut Show,
    pages: BTreeSet<u64>,
    /// The page whose person plays.
    player: Option<u64>,
    keys: Vec<String>,
    /// The move that was chosen.
    chosen: Option<Hand>,
    /// What the keys did last.
    last: Option<Hand>,
    number: u64,
}

impl Table<'_> {
    /// Plays on whenever somebody watches.
    fn play(&mut self, told: &mpsc::Receiver<Told>, tell: &watch::Sender<Utf8Bytes>) -> Result<()> {
        let mut due = Instant::now();
        loop {
            self.tell(tell);
            due = Instant::now().max(due + self.pace());
            let mut heard = 0;
            let begun = loop {
                let idle = self.pages.is_empty() || self.waits();
                let wait = if idle { Duration::MAX } else { due.saturating_duration_since(Instant::now()) };
                // Whoever talks without an end does not hold up a game that is late.
                if wait.is_zero() && heard == HEARD {
                    break false;
                }
                heard = HEARD.min(heard + 1);
                let next = match told.recv_timeout(wait) {
                    Ok(next) => next,
                    Err(RecvTimeoutError::Timeout) => break false,
                    Err(RecvTimeoutError::Disconnected) => return Ok(()),
                };
                let (answer, begun) = self.hear(next.page, next.what)?;
                // Who has gone wants no answer.
                let _ = next.answer.send(answer);
                if begun || self.chosen.is_some() {
                    break begun;
                }
            };
            if begun {
                due = Instant::now();
                continue;
            }
            let hand = match self.chosen.take() {
                None if self.player.is_some() => {
                    // Whoever does not play by keys does nothing with them.
                    self.last = self.show.hand(&self.keys, self.last.as_ref()).ok();
                    self.last.clone()
                }
                chosen => chosen,
            };
            self.show.step(hand.as_ref())?;
        }
    }

    /// Whether nothing goes on before the person has made a move, or at the end of a game of two asks for another one.
    fn waits(&self) -> bool {
        let over = self.show.ended() && self.show.person().is_some() && self.show.spec().players == 2;
        over || (self.show.waits() && self.chosen.is_none())
    }

    /// How long a frame is to be seen.
    fn pace(&self) -> Duration {
        match self.show.person() {
            _ if self.show.ended() => END,
            Some(_) if self.show.spec().players == 2 => ANSWER,
            _ => Duration::from_secs_f32(1.0 / self.show.rate()),
        }
    }

    /// Gives the last frame to everybody.
    fn tell(&mut self, tell: &watch::Sender<Utf8Bytes>) {
        let (show, search) = (&*self.show, self.show.search());
        self.number += 1;
        let seen = Seen {
            r#type: "frame",
            number: self.number,
            scene: &show.scene(),
            marks: &show.marks(),
            line: &show.line(),
            search: search.as_deref(),
            player: self.player,
            seat: show.person(),
            waits: show.waits(),
            ended: show.ended(),
        };
        tell.send_replace(json(&seen));
    }

    /// Hears what a page has to say: what it is answered, and whether a new game has begun.
    ///
    /// # Errors
    /// If the environment or a network fails, for which no page can be blamed.
    fn hear(&mut self, page: u64, what: What) -> Result<(Result<(), String>, bool)> {
        let plays = self.player == Some(page);
        let refuse = |why: &str| Ok((Err(why.to_owned()), false));
        match what {
            What::Came => {
                self.pages.insert(page);
                Ok((Ok(()), false))
            }
            What::Went => {
                self.pages.remove(&page);
                if plays { self.seat(None, None) } else { Ok((Ok(()), false)) }
            }
            What::Asked(Asked::Play { .. }) if self.player.is_some() && !plays => refuse("somebody else plays"),
            What::Asked(Asked::Play { seat }) => match self.show.seats().get(seat) {
                Some(_) => self.seat(Some(page), Some(seat)),
                None => refuse("there is no such seat"),
            },
            What::Asked(_) if !plays => refuse("take a seat first"),
            What::Asked(Asked::Leave) => self.seat(None, None),
            What::Asked(Asked::Click { x, y }) => Ok((self.choose(|show| person::clicked(show.spec(), [x, y], show.legal())), false)),
            What::Asked(Asked::Move { number }) => Ok((self.choose(|show| person::typed(&number.to_string(), show.legal())), false)),
            What::Asked(Asked::Keys { down }) => {
                let known = self.show.hand(&down, None);
                self.keys = down;
                Ok((known.map(drop), false))
            }
        }
    }

    /// Takes a move, if it is the person's turn.
    fn choose(&mut self, read: impl FnOnce(&Show) -> Result<Hand, String>) -> Result<(), String> {
        if !self.show.waits() {
            return Err("it is not your turn".to_owned());
        }
        self.chosen = Some(read(self.show)?);
        Ok(())
    }

    /// Begins a game with that page's person in a seat, or with nobody.
    fn seat(&mut self, player: Option<u64>, seat: Option<usize>) -> Result<(Result<(), String>, bool)> {
        self.show.begin(seat)?;
        (self.player, self.chosen, self.last) = (player, None, None);
        self.keys.clear();
        Ok((Ok(()), true))
    }
}
