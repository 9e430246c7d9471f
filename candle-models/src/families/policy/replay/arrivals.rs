//! A game while it is played: the events of a replay in pieces of any size, as a growing file or a connection gives them.

use super::{Known, MAX_ROLLBACK, Parser, Progress, place};
use crate::families::policy::game::{Frame, Game};
use crate::{Error, Result};

/// First bytes of events: the one that names the sizes of all others, the one behind it, the last one of a frame and of a game.
pub const PAYLOADS: u8 = 0x35;
pub const GAME_START: u8 = 0x36;
pub const FRAME_END: u8 = 0x3C;
pub const GAME_END: u8 = 0x39;

/// How far the game rolls back, where the format does not say which frames are settled.
const ROLLBACK: i32 = 7;

/// What arrived.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack: a box would be an allocation per frame")]
pub enum Arrival {
    /// The game has started: [`Arrivals::game`] knows the stage and the players.
    Start,
    /// A frame is complete. After a rollback ids come again, and the last frame of an id counts.
    Frame {
        /// The frame.
        frame: Frame,
        /// Up to this id, frames will not come again.
        settled: i32,
    },
    /// The game is over.
    End,
}

/// Reads the events of one game as their bytes arrive.
///
/// The frames are those that a [`Reader`](super::Reader) finds in the finished file, to the bit, but with those that a rollback replaced. Before
/// format 3.0 only the next frame says that a frame is complete: there it is one frame late. Names that only the end of a file
/// has (before format 3.9) are not known.
///
/// ```
/// use candle_models::policy::{replay, simulation::simulate};
/// # fn main() -> candle_models::Result<()> {
/// let game = simulate(1, 200);
/// let file = replay::to_bytes(&game)?;
/// let mut arrivals = replay::Arrivals::default();
/// let mut frames = Vec::new();
/// for piece in file[replay::HEADER_BYTES..].chunks(100) {
///     arrivals.push(piece);
///     while let Some(arrival) = arrivals.next()? {
///         match arrival {
///             replay::Arrival::Frame { frame, .. } => frames.push(frame),
///             replay::Arrival::Start => assert_eq!(arrivals.game().stage, game.stage),
///             replay::Arrival::End => assert_eq!(frames, game.frames),
///         }
///     }
/// }
/// assert_eq!(frames.len(), 200);
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Arrivals {
    bytes: Vec<u8>,
    /// How many of them were read.
    read: usize,
    sizes: Sizes,
    parser: Option<Parser>,
    game: Game,
    last: Option<i32>,
    ended: bool,
}

impl Arrivals {
    /// Takes bytes of events: those behind a file's [`HEADER_BYTES`](super::HEADER_BYTES), or the payload of a message.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.read);
        self.read = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Everything of the game but its frames; empty before [`Arrival::Start`].
    pub fn game(&self) -> &Game {
        &self.game
    }

    /// The next arrival; `None` until more bytes are there, and after the end.
    ///
    /// # Errors
    /// [`Error::Input`] for bytes that are no events, a game of other than two players or without a human one, and frames out of order. The
    /// game cannot be read any further then.
    #[expect(clippy::should_implement_trait, reason = "none now is not the end")]
    pub fn next(&mut self) -> Result<Option<Arrival>> {
        let arrival = self.read_on().map_err(Error::Input)?;
        if let Some(Arrival::Frame { frame, .. }) = &arrival {
            let last = self.last.unwrap_or(frame.id.saturating_sub(1));
            place(last.saturating_sub(MAX_ROLLBACK as i32), last, frame.id).map_err(Error::Input)?;
            self.last = Some(frame.id);
        }
        Ok(arrival)
    }

    fn read_on(&mut self) -> Result<Option<Arrival>, String> {
        if self.parser.is_none() {
            return self.start();
        }
        while !self.ended {
            let Some(event) = self.sizes.event(&self.bytes[self.read..])? else { return Ok(None) };
            let event = self.read..self.read + event;
            let Some(parser) = &mut self.parser else { return Ok(None) };
            let progress = parser.event(&mut &self.bytes[event.clone()])?;
            self.read = event.end;
            match progress {
                Progress::Event => {}
                Progress::Frame(frame) => return Ok(Some(arrived(frame, parser))),
                // The last frame of old formats is complete now; the event is read once more for the end itself.
                Progress::End => match parser.last_frame() {
                    Some(frame) => {
                        self.read = event.start;
                        return Ok(Some(arrived(frame, parser)));
                    }
                    None => {
                        self.ended = true;
                        return Ok(Some(Arrival::End));
                    }
                },
            }
        }
        Ok(None)
    }

    /// Reads the first two events, once both are there.
    fn start(&mut self) -> Result<Option<Arrival>, String> {
        let Some(first) = self.sizes.event(&self.bytes)? else { return Ok(None) };
        self.sizes.learn(&self.bytes[..first])?;
        match self.bytes.get(first) {
            None => return Ok(None),
            Some(&GAME_START) => {}
            Some(other) => return Err(format!("the event {other:#04x} comes before the start of the game")),
        }
        let Some(second) = self.sizes.event(&self.bytes[first..])? else { return Ok(None) };
        self.read = first + second;
        let mut parser = Parser::start(&mut &self.bytes[..self.read])?;
        let (players, _) = parser.players(|_| Known::default())?;
        self.game = Game { stage: parser.stage(), version: parser.version(), players, ..Game::default() };
        self.parser = Some(parser);
        Ok(Some(Arrival::Start))
    }
}

fn arrived(frame: Frame, parser: &Parser) -> Arrival {
    let rolls_back = parser.gte(3, 0);
    let settled = parser.settled.unwrap_or(if rolls_back { frame.id.saturating_sub(ROLLBACK + 1) } else { frame.id });
    Arrival::Frame { frame, settled }
}

/// How long events are, by their first byte; 0 for one that is not known.
pub struct Sizes([usize; 256]);

impl Default for Sizes {
    fn default() -> Self {
        Self([0; 256])
    }
}

impl Sizes {
    /// The length of the event at the start of some bytes, `None` while it is not complete.
    ///
    /// # Errors
    /// If there is no such event.
    pub fn event(&self, bytes: &[u8]) -> Result<Option<usize>, String> {
        let length = match (bytes.first(), bytes.get(1)) {
            (None, _) | (Some(&PAYLOADS), None) => return Ok(None),
            (Some(&PAYLOADS), Some(length)) => 1 + usize::from(*length),
            (Some(code), _) => match self.0[usize::from(*code)] {
                0 => return Err(format!("no Slippi event: {code:#04x}")),
                length => 1 + length,
            },
        };
        Ok((bytes.len() >= length).then_some(length))
    }

    /// Takes the sizes from the event that names them.
    ///
    /// # Errors
    /// If it is none.
    pub fn learn(&mut self, event: &[u8]) -> Result<(), String> {
        let (Some(&PAYLOADS), Some(entries)) = (event.first(), event.get(2..)) else { return Err("no sizes of events".to_owned()) };
        for entry in entries.chunks_exact(3) {
            self.0[usize::from(entry[0])] = usize::from(u16::from_be_bytes([entry[1], entry[2]]));
        }
        Ok(())
    }
}
