//! `candle-infer play` in live games: from growing files, and from `candle-infer playback` as a user starts both. What is decided live is
//! compared with what `candle-infer run` decides on the finished file. And in simulated fights, against the library's own.

use crate::infer::{Place, small};
use crate::replay::data;
use candle_models::policy::PolicyConfig;
use candle_models::policy::actions::Action;
use candle_models::policy::game::Game;
use candle_models::policy::replay::{self, HEADER_BYTES};
use candle_models::policy::simulation::simulate;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_candle-infer");

/// A program that runs beside the test; it is killed with it.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn new(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(arguments.into_iter().map(Into::into)).env_remove("CANDLE_THREADS").stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (stdout, stderr) = (BufReader::new(child.stdout.take().unwrap()), BufReader::new(child.stderr.take().unwrap()));
        Self { child, stdout, stderr }
    }

    /// The first line on standard output, or error, that has this in it.
    fn line(reader: &mut impl BufRead, part: &str) -> String {
        let mut all = String::new();
        loop {
            let mut line = String::new();
            assert_ne!(reader.read_line(&mut line).unwrap(), 0, "no {part:?} in: {all}");
            if line.contains(part) {
                return line;
            }
            all += &line;
        }
    }

    fn says(&mut self, part: &str) -> String {
        Self::line(&mut self.stdout, part)
    }

    fn warns(&mut self, part: &str) -> String {
        Self::line(&mut self.stderr, part)
    }

    /// Waits for the end: how, what is left of standard output, and of standard error.
    fn end(mut self) -> (ExitStatus, String, String) {
        let (mut out, mut err) = (String::new(), String::new());
        self.stdout.read_to_string(&mut out).unwrap();
        self.stderr.read_to_string(&mut err).unwrap();
        assert!(!err.contains("panicked"), "{err}");
        (self.child.wait().unwrap(), out, err)
    }

    /// Ends well; what is left of standard output, and of standard error.
    fn done(self) -> (String, String) {
        let (status, out, err) = self.end();
        assert!(status.success(), "{out}{err}");
        (out, err)
    }

    fn signal(&self, signal: libc::c_int) {
        // SAFETY: a signal to a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as libc::pid_t, signal) }, 0);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the stand-in on a free port; the address it is at.
fn playback(recording: &Path, more: &[&str]) -> (Running, String) {
    playback_at(recording, "127.0.0.1:0", more)
}

fn playback_at(recording: &Path, server: &str, more: &[&str]) -> (Running, String) {
    let start = ["playback", recording.to_str().unwrap(), "--server", server];
    let mut running = Running::new(start.into_iter().chain(more.iter().copied()));
    let address = running.says("listening on ").trim().rsplit(' ').next().unwrap().to_owned();
    (running, address)
}

/// What `run` is asked for with `--sample`, and otherwise its default, `play` does by default and is asked for with `--greedy`.
fn play(bundle: &Path, more: &[&str]) -> Running {
    let drawn = more.contains(&"--sample");
    let more = more.iter().copied().filter(|word| *word != "--sample").chain((!drawn).then_some("--greedy"));
    Running::new(["play", bundle.to_str().unwrap(), "--every", "1000000"].into_iter().chain(more))
}

/// The lines of a file of decisions, by frame and port: the last line of each counts.
fn decisions(path: &Path) -> BTreeMap<(i64, i64), (String, f64)> {
    let text = fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let entry = |line: Value| {
        let key = (line["frame"].as_i64().unwrap(), line["port"].as_i64().unwrap());
        (key, (line["chosen"].as_str().unwrap().to_owned(), line["value"].as_f64().unwrap()))
    };
    lines.map(entry).collect()
}

/// What `run` decides on the finished file.
fn decided_after(bundle: &Path, recording: &Path, more: &[&str]) -> BTreeMap<(i64, i64), (String, f64)> {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run.jsonl");
    let paths = [bundle, recording, Path::new("--out"), &out].map(|path| path.to_str().unwrap());
    crate::infer::done(["run"].into_iter().chain(paths).chain(more.iter().copied()));
    decisions(&out)
}

/// Live as afterwards; live there is one frame more, the one that would have come next. Two players are two rows of a batch in both, and all
/// numbers are the same to the bit; one player is a row alone live, which is added up in another order.
fn assert_same(live: &Path, afterwards: &BTreeMap<(i64, i64), (String, f64)>) {
    let mut live = decisions(live);
    let last = afterwards.keys().map(|(frame, _)| *frame).max().unwrap();
    live.retain(|(frame, _), _| *frame <= last);
    assert_eq!(live.len(), afterwards.len());
    let ports: BTreeSet<i64> = live.keys().map(|(_, port)| *port).collect();
    let close = if ports.len() == 2 { 0.0 } else { 1e-5 };
    for (key, (chosen, value)) in afterwards {
        let (found, valued) = &live[key];
        assert!(chosen == found && (value - valued).abs() <= close, "frame and port {key:?}: {found} {valued}, not {chosen} {value}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/policy-mamba")
}

fn fifo(place: &Place) -> PathBuf {
    let path = place.path("pipe");
    let name = std::ffi::CString::new(text(&path)).unwrap();
    // SAFETY: a name that ends in a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    path
}

#[test]
fn decisions_over_the_network_are_those_on_the_file_though_the_connection_is_cut() {
    let place = Place::new(&small(), 1200);
    let (server, address) = playback(&place.path("game.slp"), &["--rate", "0", "--cut", "400"]);
    let out = place.path("live.jsonl");
    let (said, warned) = play(&place.path("policy"), &["--server", &address, "--out", text(&out)]).done();
    assert!(said.contains("1200 frames of 1 games decided") && said.contains("connection lost 3 times"), "{said}{warned}");
    assert_eq!(warned.matches("connecting again").count(), 3, "{warned}");
    assert!(server.done().0.contains("1200 frames played back"));
    assert_same(&out, &decided_after(&place.path("policy"), &place.path("game.slp"), &[]));
}

/// Games of two people over the internet, one of whom the game had to correct every other frame; Ice Climbers; the newest formats.
#[test]
fn real_games_are_decided_live_as_afterwards() {
    let Some(folder) = data("slippi") else { return };
    let games =
        ["t09_peppi_ics2__ICs_Falco__DL__v3.12.0", "t13_slippistats_202334__Falco_Falco__BF__v3.14.0", "t25__Falcon_ICs__DL__v3.14.0"];
    let place = tempfile::tempdir().unwrap();
    for (i, game) in games.into_iter().enumerate() {
        let (recording, out) = (folder.join(format!("{game}.slp")), place.path().join("live.jsonl"));
        let again = if i == 1 {
            let (_server, address) = playback(&recording, &["--rate", "0", "--cut", "5000"]);
            play(&shipped(), &["--server", &address, "--out", text(&out)]).done().0
        } else {
            play(&shipped(), &["--follow", text(&recording), "--out", text(&out)]).done().0
        };
        let raw = replay::read(&recording).unwrap();
        let rolled_back = raw.raw_frames - raw.frames.len();
        assert!(rolled_back > 10 && again.contains(&format!(" {rolled_back} of them again after a rollback")), "{game}: {again}");
        assert_same(&out, &decided_after(&shipped(), &recording, &[]));
    }
}

#[test]
fn a_file_is_followed_while_it_is_written() {
    let place = Place::new(&small(), 700);
    let (bytes, out, growing) = (fs::read(place.path("game.slp")).unwrap(), place.path("live.jsonl"), place.path("growing.slp"));
    // As Slippi writes it: the length of the events comes at the end.
    let mut recording = bytes.clone();
    recording[HEADER_BYTES - 4..HEADER_BYTES].fill(0);
    File::create(&growing).unwrap();
    let sampled = ["--sample", "--seed", "3", "--port", "2", "--name", "Other"];
    let mut live = vec!["--follow", text(&growing), "--out", text(&out)];
    live.extend(sampled);
    let mut playing = play(&place.path("policy"), &live);
    let mut file = OpenOptions::new().write(true).open(&growing).unwrap();
    let mut sizes = [1, 3, 700, 20_000, 7, 5000].into_iter().cycle();
    let mut rest = &recording[..];
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(sizes.next().unwrap().min(rest.len()));
        file.write_all(piece).unwrap();
        rest = after;
        std::thread::yield_now();
    }
    let started = playing.says("growing.slp: ");
    assert!(started.contains("Final Destination, port 1 \"Simulated 1\" Marth"), "{started}");
    playing.done();
    // Draws are those of a file of that name.
    fs::write(&growing, &bytes).unwrap();
    assert_same(&out, &decided_after(&place.path("policy"), &growing, &sampled));
}

/// With a delay, who watches looks back as far as a player would have.
#[test]
fn a_delay_is_kept_to() {
    let place = Place::new(&PolicyConfig { delay: 3, ..small() }, 400);
    let (game, out) = (place.path("game.slp"), place.path("live.jsonl"));
    play(&place.path("policy"), &["--follow", text(&game), "--out", text(&out)]).done();
    assert_same(&out, &decided_after(&place.path("policy"), &game, &[]));
    // Who acts goes by the newest frame, for the frame that the delay puts it to.
    let (pipe, first) = (fifo(&place), i64::from(place.game.frames[0].id));
    play(&place.path("policy"), &["--follow", text(&game), "--out", text(&out), "--pipe", text(&pipe), "--port", "1"]).done();
    let frames: Vec<i64> = decisions(&out).into_keys().map(|(frame, _)| frame).collect();
    assert_eq!((frames.len(), frames[0], *frames.last().unwrap()), (400, first + 4, first + 403));
}

#[test]
fn the_controller_is_pressed_as_decided_and_let_go_at_the_end() {
    let place = Place::new(&small(), 500);
    let (pipe, states, out) = (place.path("pipe"), place.path("states.jsonl"), place.path("live.jsonl"));
    let (server, address) = playback(&place.path("game.slp"), &["--rate", "0", "--pipe", text(&pipe), "--out", text(&states)]);
    let sampled = ["--port", "2", "--sample"];
    let mut arguments = vec!["--server", &address, "--pipe", text(&pipe), "--out", text(&out)];
    arguments.extend(sampled);
    let (said, warned) = play(&place.path("policy"), &arguments).done();
    assert_eq!(warned, "");
    assert!(said.contains("frame in to controller out"), "{said}");
    let heard = server.done().0;
    assert!(heard.contains(" 0 lines that are no command"), "{heard}");
    let pressed: Vec<String> = fs::read_to_string(&states).unwrap().lines().map(pressed).collect();
    // A machine that is busy elsewhere may let the controller go in between, and then decide two frames at once.
    let lines = fs::read_to_string(&out).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let in_time = lines.iter().filter(|line| line["in_time"].as_bool().unwrap());
    let chosen: Vec<String> = in_time.map(|line| line["chosen"].as_str().unwrap().to_owned()).collect();
    let neutral = Action::default().to_string();
    assert_eq!((lines.len(), pressed.last()), (500, Some(&neutral)));
    let active = |states: &[String]| states.iter().filter(|state| **state != neutral).cloned().collect::<Vec<_>>();
    let (pressed, chosen) = (active(&pressed), active(&chosen));
    assert!(pressed == chosen && pressed.len() > 100, "{} of {} states", pressed.len(), chosen.len());
}

fn pressed(line: &str) -> String {
    serde_json::from_str::<Value>(line).unwrap()["pressed"].as_str().unwrap().to_owned()
}

#[test]
fn a_pipe_that_nobody_reads_is_waited_for_without_hanging() {
    let place = Place::new(&small(), 300);
    let pipe = fifo(&place);
    let game = place.path("game.slp");
    let arguments = ["--follow", text(&game), "--port", "1", "--pipe"];
    let with = |pipe: &Path| play(&place.path("policy"), &[&arguments[..], &[text(pipe)]].concat()).end();
    let (status, said, warned) = with(&pipe);
    assert!(status.success() && said.contains("300 frames of 1 games decided"), "{said}{warned}");
    assert_eq!(warned.matches("nobody reads this pipe").count(), 1, "{warned}");
    let (status, _, error) = with(&game);
    assert_eq!((status.code(), error.lines().count()), (Some(1), 1));
    assert!(error.contains("game.slp: no named pipe"), "{error}");
    assert!(with(&place.path("absent")).2.contains("absent: "));
}

#[test]
fn a_file_that_stops_growing_ends_the_play_and_in_a_folder_the_next_game_goes_on() {
    let place = Place::new(&small(), 300);
    let bytes = fs::read(place.path("game.slp")).unwrap();
    let folder = place.path("Slippi");
    fs::create_dir(&folder).unwrap();
    let cut = folder.join("Game_1.slp");
    let mut half = bytes[..bytes.len() / 2].to_vec();
    half[HEADER_BYTES - 4..HEADER_BYTES].fill(0);
    fs::write(&cut, &half).unwrap();
    let (status, said, error) = play(&place.path("policy"), &["--follow", text(&cut), "--timeout", "1"]).end();
    assert_eq!((status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(
        error.contains("Game_1.slp: has not grown for 1 s, and the game is not over") && said.contains("frames of 1 games decided"),
        "{error}"
    );
    // In a folder: warned of, and the next one is played.
    let mut playing = play(&place.path("policy"), &["--follow", text(&folder), "--timeout", "1"]);
    playing.warns("Game_1.slp: has not grown for 1 s");
    fs::write(folder.join("Game_2.slp"), &bytes).unwrap();
    playing.says("Game_2.slp: Final Destination");
    // A game that cannot be played is no end either.
    let mut elsewhere = simulate(3, 200);
    elsewhere.stage = 4;
    fs::write(folder.join("Game_3.slp"), replay::to_bytes(&elsewhere).unwrap()).unwrap();
    playing.warns("Game_3.slp: stage 4 is not supported");
    playing.signal(libc::SIGINT);
    let (said, _) = playing.done();
    assert!(said.contains("frames of 2 games decided"), "{said}");
}

#[test]
fn a_file_that_is_begun_anew_is_played_from_its_beginning() {
    let place = Place::new(&small(), 600);
    let bytes = fs::read(place.path("game.slp")).unwrap();
    let path = place.path("Game.slp");
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let mut playing = play(&place.path("policy"), &["--follow", text(&path)]);
    playing.says("Game.slp: Final Destination");
    fs::write(&path, &bytes[..1000]).unwrap();
    playing.warns("Game.slp: the file was begun anew");
    fs::write(&path, &bytes).unwrap();
    playing.says("Game.slp: Final Destination");
    playing.done();
}

/// The bytes of a game with a third player.
fn three(game: &Game) -> Vec<u8> {
    let mut bytes = replay::to_bytes(game).unwrap();
    let start = HEADER_BYTES + 1 + usize::from(bytes[HEADER_BYTES + 1]);
    assert_eq!(bytes[start], 0x36);
    // The third port's kind of player, 3 for nobody.
    let kind = start + 1 + 100 + 2 * 36 + 1;
    assert_eq!(std::mem::replace(&mut bytes[kind], 0), 3);
    bytes
}

#[test]
fn a_game_that_cannot_be_played_is_one_line() {
    let place = Place::new(&small(), 300);
    let refuse = |name: &str, bytes: &[u8], part: &str| {
        let path = place.path(name);
        fs::write(&path, bytes).unwrap();
        let (status, _, error) = play(&place.path("policy"), &["--follow", text(&path), "--timeout", "1"]).end();
        assert_eq!((status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(name) && error.contains(part), "{part:?} is not in: {error}");
    };
    let game = simulate(3, 200);
    let other = |change: fn(&mut Game)| {
        let mut game = game.clone();
        change(&mut game);
        replay::to_bytes(&game).unwrap()
    };
    refuse("stage.slp", &other(|game| game.stage = 4), "stage 4 is not supported");
    refuse("fighter.slp", &other(|game| game.frames[150].players[1].fighter.character = 31), "character 31 (Giga Bowser) is not supported");
    refuse(
        "gap.slp",
        &other(|game| {
            game.frames.remove(50);
        }),
        "frames are missing",
    );
    refuse("three.slp", &three(&game), "found 3 human and 0 computer players");
    refuse("text.slp", b"not a replay, but longer than the header of one", "not a Slippi replay");
    refuse("empty.slp", b"", "has not grown for 1 s");
    refuse(
        "event.slp",
        &{
            let mut bytes = replay::to_bytes(&game).unwrap();
            let start = HEADER_BYTES + 1 + usize::from(bytes[HEADER_BYTES + 1]);
            bytes[start] = 0x99;
            bytes
        },
        "0x99",
    );
    let usage =
        |arguments: &[&str], part: &str| crate::infer::refused([&["play", text(&place.path("policy"))], arguments].concat(), 2, &[part]);
    usage(&["--pipe", "pipe"], "--port");
    usage(&["--seed", "1", "--greedy"], "cannot be used with");
    usage(&["--html", "page.html"], "--html");
    usage(&["--out", "a.txt"], "expected a name in .jsonl");
    usage(&["--follow", "a", "--server", "b:1"], "one of them");
    let beam = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/beam-c1");
    crate::infer::refused(["play", text(&beam)], 1, &["a beam does not play"]);
}

#[test]
fn a_server_that_is_none_or_talks_nonsense_is_given_up() {
    let place = Place::new(&small(), 130);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap().to_string();
    let mut playing = play(&place.path("policy"), &["--server", &address, "--timeout", "1"]);
    // Answers that are no ENet, until the other side has given up.
    socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut answers = [&b"hello"[..], &[0xff; 1400], b"{\"type\":\"connect_reply\"}"].into_iter().cycle();
    let mut asked = [0; 2048];
    while playing.child.try_wait().unwrap().is_none() {
        if let Ok((_, from)) = socket.recv_from(&mut asked) {
            socket.send_to(answers.next().unwrap(), from).unwrap();
        }
    }
    let (status, _, error) = playing.end();
    assert_eq!((status.code(), error.lines().count()), (Some(1), 1), "{error}");
    assert!(error.contains(&format!("{address}: no answer of Slippi for 1 s: is Dolphin running")), "{error}");
    crate::infer::refused(["play", text(&place.path("policy")), "--server", "nowhere"], 1, &["nowhere"]);
}

#[test]
fn a_server_that_disappears_is_found_again() {
    let place = Place::new(&small(), 300);
    let game = place.path("game.slp");
    let (mut server, address) = playback(&game, &["--rate", "60"]);
    let mut playing = play(&place.path("policy"), &["--server", &address]);
    playing.says("game 1: Final Destination");
    // Killed, it says no farewell.
    server.child.kill().unwrap();
    playing.warns("the connection is lost; connecting again");
    drop(server);
    let (server, _) = playback_at(&game, &address, &["--rate", "0"]);
    let (said, _) = playing.done();
    assert!(said.contains(" games decided"), "{said}");
    server.done();
}

#[test]
fn recordings_that_cannot_be_played_back_are_one_line() {
    let place = Place::new(&small(), 130);
    fs::write(place.path("text.slp"), "no replay at all, certainly not one").unwrap();
    crate::infer::refused(["playback", text(&place.path("text.slp"))], 1, &["text.slp: not a Slippi replay"]);
    crate::infer::refused(["playback", text(&place.path("absent.slp"))], 1, &["absent.slp"]);
    if let Some(folder) = data("slippi") {
        let old = folder.join("t01_peppi_console_name__Falcon_Peach__DL__v1.7.1.slp");
        crate::infer::refused(["playback", text(&old)], 1, &["format 1.7.1 does not mark the end of a frame"]);
    }
}

/// A Python with libmelee: CANDLE_PYTHON, or python3.
fn libmelee() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("CANDLE_PYTHON").unwrap_or_else(|| "python3".into()));
    let found = Command::new(&python).args(["-c", "import melee"]).output().is_ok_and(|output| output.status.success());
    if !found {
        assert!(std::env::var_os("CANDLE_REQUIRE_MELEE").is_none(), "{} cannot import melee", python.display());
        eprintln!("skipped: {} cannot import melee", python.display());
    }
    found.then_some(python)
}

/// The client that others use reads whole games from the stand-in, and its controller presses on the stand-in's pipe.
#[test]
fn libmelee_reads_what_is_played_back() {
    let Some(python) = libmelee() else { return };
    let place = Place::new(&small(), 600);
    // Frames that the game played again, if there are real games.
    let netplay = data("slippi_edge").map(|folder| folder.join("e10_v3.16_short.slp"));
    let pipe = place.path("Pipes").join("slippibot1");
    fs::create_dir(place.path("Pipes")).unwrap();
    for recording in netplay.into_iter().chain([place.path("game.slp")]) {
        let (server, address) = playback(&recording, &["--rate", "0", "--pipe", text(&pipe)]);
        // What has been sent is acknowledged before the client looks at it, and the stand-in ends with the last acknowledgement: the client
        // may still press then, on a pipe that needs a reader.
        let _reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&pipe).unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scripts/spectate-check.py");
        let port = address.rsplit(':').next().unwrap();
        let mut command = Command::new(&python);
        command.arg(script).arg(&recording).args(["--port", port, "--pipes"]).arg(pipe.parent().unwrap().parent().unwrap());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let frames = replay::read(&recording).unwrap().raw_frames;
        assert!(String::from_utf8_lossy(&output.stdout).contains(&format!("read {frames} frames")));
        let said = server.done().0;
        assert!(said.contains(&format!("{frames} frames played back")) && said.contains(" 0 lines that are no command"), "{said}");
    }
}

/// `taskset -c 0 cargo test --release --workspace --test it -- --ignored --nocapture ten_minutes` prints what `play` measures.
#[test]
#[ignore = "deep: plays ten minutes at 60 frames a second, with the connection cut twice"]
fn ten_minutes_at_60_frames_a_second_lose_no_frame() {
    let place = Place::new(&small(), 130);
    let mut game = simulate(11, 3000);
    let frames = 10 * 60 * 60 + 123;
    game.frames = game.frames.iter().copied().cycle().take(frames).collect();
    game.frames.iter_mut().zip(-123..).for_each(|(frame, id)| frame.id = id);
    let (recording, out, pipe) = (place.path("long.slp"), place.path("live.jsonl"), place.path("pipe"));
    replay::write(&game, &recording).unwrap();
    let (server, address) = playback(&recording, &["--rate", "60", "--cut", "15000", "--pipe", text(&pipe)]);
    let arguments = ["--server", &address, "--out", text(&out), "--pipe", text(&pipe), "--port", "1"];
    let (said, warned) = play(&shipped(), &arguments).done();
    println!("{said}{warned}{}", server.done().0);
    assert!(said.contains("connection lost 2 times"), "{said}");
    assert_eq!(decisions(&out).len(), frames);
}

/// What `play --against` prints, without the line of times and the remark on builds for development.
fn fought(bundle: &Path, more: &[&str]) -> Vec<String> {
    let said = crate::infer::done(["play", text(bundle)].into_iter().chain(more.iter().copied()));
    let timed = |line: &str| line.starts_with("time per frame of play: p50 ") || line.contains("--release");
    assert_eq!(said.lines().filter(|line| line.starts_with("time per frame")).count(), 1, "{said}");
    said.lines().filter(|line| !timed(line)).map(str::to_owned).collect()
}

/// The games are those of the library, frame by frame and in the score.
#[test]
fn a_policy_fights_a_bot_and_tells_the_score() {
    use candle_models::Error;
    use candle_models::policy::simulation::{Duel, NAMES, Script, policy, score};
    use candle_models::prelude::*;
    use candle_models::random::Random;

    let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights/duel");
    let found = fought(&bundle, &["--against", "script", "--games", "2", "--seed", "5", "--every", "500"]);
    let network = families::shipped().load(&Bundle::open(&bundle).unwrap()).unwrap();
    let mut player = policy::<Script>(Runner::new(network, 1, 1).unwrap(), Some(Random::new(5).stream("action")));
    let mut frames = Vec::new();
    let score = score::<Script, Error>(2, 1, 5, |seats, actions| {
        player(seats, actions)?;
        let duel: &Duel = &seats[0].duel;
        let frame = duel.fight().frame() + 1;
        if seats[0].game == 0 && frame % 500 == 0 {
            let [marth, fox] = [0, 1].map(|i| {
                let fighter = &duel.fighters()[i];
                format!("{} {:.0}% {}", NAMES[i], fighter.percent, "o".repeat(fighter.stocks.into()))
            });
            frames.push(format!("{frame:>7}  {marth:<20}  {fox:<20}  "));
        }
        Ok(())
    });
    let score = score.unwrap();
    assert_eq!(
        found[..2],
        [
            format!("{} fights the script in the SIMULATION (not Melee), 2 games from seed 5; frames of the first one:", bundle.display()),
            "  frame  policy (o: a stock)   bot                   pressed by the policy".to_owned(),
        ]
    );
    assert_eq!(frames[0], "      0  Marth 0% oooo         Fox 0% oooo           ");
    let (printed, counted) = found[2..].split_at(frames.len());
    assert!(printed.iter().zip(&frames).all(|(line, frame)| line.starts_with(frame) && line.len() > frame.len()), "{found:#?}");
    assert_eq!(counted.join("\n"), score.to_string());
}

#[test]
fn a_seed_is_a_fight() {
    let place = Place::new(&small(), 10);
    for more in [&["--greedy"][..], &[]] {
        let fight = |seed: &str| {
            let arguments = ["--against", "punish", "--games", "1", "--every", "100", "--seed", seed];
            fought(&place.path("policy"), &[&arguments[..], more].concat())[1..].to_vec()
        };
        assert_eq!(fight("3"), fight("3"));
        // The bot that punishes draws nothing: without drawn actions all games are one.
        assert_eq!(fight("3") == fight("4"), !more.is_empty());
    }
}

#[test]
fn fights_that_cannot_be_are_refused_in_words() {
    let place = Place::new(&PolicyConfig { delay: 2, ..small() }, 10);
    let policy = place.path("policy");
    let refused =
        |arguments: &[&str], code: i32, parts: &[&str]| crate::infer::refused([&["play", text(&policy)], arguments].concat(), code, parts);
    refused(&["--against", "script"], 1, &[text(&policy), "2 frames", "without delay"]);
    refused(&["--against", "script", "--games", "0"], 2, &["--games"]);
    refused(&["--games", "3"], 2, &["--against"]);
    refused(&["--against", "nobody"], 2, &["--against", "script, punish, keys"]);
    for other in [&["--port", "1"][..], &["--out", "a.jsonl"], &["--follow", "a.slp"], &["--server", "b:1"], &["--timeout", "1"]] {
        refused(&[&["--against", "script"], other].concat(), 2, &["--against", other[0], "cannot be used with"]);
    }
    for (bundle, family) in [("beam-c1", "a beam"), ("cartpole", "a agent")] {
        let bundle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../weights").join(bundle);
        crate::infer::refused(["play", text(&bundle), "--against", "script"], 2, &["--against means nothing to", family]);
    }
}
