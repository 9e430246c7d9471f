//! `candle-train watch` as people use it: in the terminal, as pictures, and on its page, over a real socket.

use crate::beam_page::well_formed;
use crate::text;
use candle_core::{Device, Tensor};
use candle_envs::{Autoreset, shipped};
use candle_models::agent::Observation;
use candle_models::bundle::{self, Manifest};
use candle_models::muzero::{FAMILY, MuZero, MuZeroConfig, NetworkConfig, Support};
use candle_models::nn::Params;
use candle_models::random::Random;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tungstenite::client::IntoClientRequest;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

const POLICY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../weights/policy-simulated");

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_candle-train"));
    command.arg("watch").args(["--threads", "1"]).args(arguments);
    command
}

fn watch(arguments: &[&str]) -> String {
    let output = command(arguments).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Without what sets colours and clears the rest of a line.
fn plain(text: &str) -> String {
    let mut parts = text.split("\x1b[");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| all + part.split_once(['m', 'K']).map_or("", |(_, rest)| rest))
}

/// Untrained networks to plan tic-tac-toe with.
fn planner(dir: &Path) -> PathBuf {
    let config = MuZeroConfig {
        observation: vec![Observation::Grid { name: "board".to_owned(), height: 3, width: 3, channels: 2, layers: Vec::new() }],
        actions: 9,
        players: 2,
        discount: 1.0,
        support: Support::Plain { size: 1 },
        network: NetworkConfig::Board { channels: 4, blocks: 1 },
        ..MuZeroConfig::default()
    };
    let params = Params::init(Random::new(1), &Device::Cpu);
    MuZero::new(&config, &params).unwrap();
    let tensors: BTreeMap<String, Tensor> = params.vars().into_iter().map(|(name, var)| (name, var.as_tensor().clone())).collect();
    let path = dir.join("planner");
    bundle::save(&path, &Manifest::new(FAMILY, &config).unwrap(), &tensors, Value::Null, &[]).unwrap();
    path
}

#[test]
fn every_environment_is_drawn_in_the_terminal() {
    for entry in shipped().iter() {
        let name = entry.name();
        let printed = plain(&watch(&[name, "--frames", "3"]));
        let lines: Vec<&str> = printed.lines().collect();
        let told: Vec<usize> = (0..lines.len()).filter(|i| lines[*i].starts_with(&format!("{name}, episode 1, step "))).collect();
        assert_eq!(told.len(), 3, "{name}: {printed}");
        // A picture, how it stands, and a line for what a search would have found.
        let height = told[0];
        assert_eq!(told, [height, 2 * height + 2, 3 * height + 4], "{name}");
        let scene = {
            let mut envs = entry.make(1, Autoreset::NextStep).unwrap();
            envs.reset(1).unwrap();
            envs.draw(0).unwrap()
        };
        let widths: Vec<usize> = lines[..height].iter().map(|line| line.chars().count()).collect();
        assert!(widths.iter().all(|width| *width == widths[0] && *width <= 80) && height <= 21, "{name}: {widths:?}");
        // Characters are twice as high as wide.
        let shape = widths[0] as f32 / (2 * height) as f32 / (scene.width / scene.height);
        assert!((0.9..1.1).contains(&shape), "{name}: {shape}");
        assert!(lines[told[2]].contains("step 2: reward "), "{name}: {}", lines[told[2]]);
    }
}

#[test]
fn what_a_search_found_stands_over_the_squares_and_below_them() {
    let dir = tempfile::tempdir().unwrap();
    let planner = planner(dir.path());
    let printed = plain(&watch(&["tictactoe", "--bundle", planner.to_str().unwrap(), "--simulations", "12"]));
    let found: Vec<&str> = printed.lines().filter(|line| line.starts_with("search: worth ")).collect();
    let ended = printed.lines().filter(|line| line.contains("; won by ") || line.contains("; a draw")).count();
    assert!((5..=9).contains(&found.len()) && ended == 1, "{printed}");
    for line in found {
        let visits = line.split_once(';').unwrap().1.split(" x ").filter_map(|part| part.rsplit(' ').next()?.parse::<u32>().ok());
        assert_eq!(visits.sum::<u32>(), 12, "{line}");
    }
    // The first position: nine visits and nine values among the squares.
    let first: Vec<&str> = printed.lines().take_while(|line| !line.starts_with("tictactoe")).collect();
    let words = first.iter().flat_map(|line| line.split('\u{2580}')).filter(|word| !word.is_empty());
    let visited: Vec<f32> = words.filter_map(|word| word.parse().ok()).collect();
    assert!(visited.len() >= 9, "{first:?}");
}

#[test]
fn pictures_have_a_frame_for_each_step() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    // Frames in a second, the hundredths of a second of a frame, and how many of 20 are left out where the game is too fast for such a picture.
    for (name, delay, frames) in [("connect-four", 100, 20), ("seaquest", 10, 20), ("duel", 3, 10)] {
        let (gif, svg) = (file("a.gif"), file("a.svg"));
        let told = watch(&[name, "--frames", "20", "--episodes", "9", "--gif", &gif, "--svg", &svg]);
        assert!(told.contains(&format!("{gif}: {frames} frames")) && told.contains(&format!("{svg}: 20 frames")), "{told}");
        let mut decoder = gif::DecodeOptions::new();
        decoder.set_color_output(gif::ColorOutput::RGBA);
        let mut decoder = decoder.read_info(std::fs::File::open(&gif).unwrap()).unwrap();
        let (width, height) = (decoder.width(), decoder.height());
        assert!(width <= 480 && height <= 480 && width.max(height) > 400, "{name}: {width} x {height}");
        let (mut found, mut pictures) = (0, Vec::new());
        while let Some(frame) = decoder.read_next_frame().unwrap() {
            // The end of a game is to be seen a second longer.
            assert_eq!((frame.width, frame.height, frame.delay % 100), (width, height, delay % 100), "{name}");
            pictures.push(frame.buffer.to_vec());
            found += 1;
        }
        pictures.dedup();
        assert!(found == frames && pictures.len() > 1, "{name}: {found}");
        let svg = std::fs::read_to_string(&svg).unwrap();
        assert!(well_formed(&svg) > 60 && svg.matches("<g").count() == 20 && svg.matches("<animate ").count() == 20, "{name}");
    }
}

fn typed(arguments: &[&str], typed: &str) -> Output {
    let mut child = command(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A program that has ended reads no more.
    let _ = child.stdin.take().unwrap().write_all(typed.as_bytes());
    child.wait_with_output().unwrap()
}

#[test]
fn moves_are_typed_and_those_that_cannot_be_played_refused() {
    let output = typed(&["tictactoe", "--play"], "5\n5\nnine\n0\nq\n");
    let printed = plain(&text(&output.stdout));
    assert!(output.status.success(), "{}", text(&output.stderr));
    for refusal in ["5 cannot be played: expected one of ", "\"nine\" is no move: expected one of ", "\"0\" is no move"] {
        assert!(printed.contains(refusal), "no '{refusal}' in\n{printed}");
    }
    assert!(printed.contains("step 0: reward 0.00, return 0.00; you to move") && printed.contains("step 2: "), "{printed}");
    assert_eq!(printed.matches("your move, 1 to 9, or q: ").count(), 5);
    // Whatever column is tried first, a game ends, and the next one begins with the other; the end of what is typed ends the program.
    let every = "1\n2\n3\n4\n5\n6\n7\n".repeat(20);
    let printed = plain(&text(&typed(&["connect-four", "--play", "--episodes", "2"], &every).stdout));
    assert_eq!(printed.lines().filter(|line| line.contains("; won by ") || line.contains("; a draw")).count(), 2, "{printed}");
    assert!(printed.contains("episode 2, step 1: reward 0.00, return 0.00; you to move"), "{printed}");
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let refused = |arguments: &[&str]| {
        let output = command(arguments).output().unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        text(&output.stderr)
    };
    let dir = tempfile::tempdir().unwrap();
    let planner = planner(dir.path());
    for (arguments, why) in [
        (&["chess"][..], "ENV: expected one of cartpole, "),
        (&["cartpole", "--bundle", POLICY], "expected one of what cartpole shows: state"),
        (&["connect-four", "--bundle", planner.to_str().unwrap()], "observation: expected [(\"board\", 84)], as connect-four has"),
        (&["cartpole", "--play"], "cartpole is not played by typed moves"),
        (&["cartpole", "--greedy"], "--bundle"),
    ] {
        let told = refused(arguments);
        assert!(told.contains(why), "{arguments:?}: {told}");
    }
}

/// A page that is being served, until this is dropped.
struct Served {
    child: Child,
    address: String,
}

impl Served {
    fn new(arguments: &[&str]) -> Self {
        let mut child = command(arguments).arg("--web").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.strip_prefix("http://").and_then(|rest| rest.split_whitespace().next()).expect(&line).to_owned();
        assert!(address.starts_with("127.0.0.1:"), "{line}");
        Self { child, address }
    }

    fn open(&self) -> Page {
        let (socket, _) = tungstenite::connect(format!("ws://{}/socket", self.address)).unwrap();
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            // So that what never comes fails the test.
            stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        }
        let mut page = Page { socket, hello: Value::Null };
        page.hello = page.next();
        assert_eq!(page.hello["type"], "hello");
        page
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other end of a page's socket.
struct Page {
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    hello: Value,
}

impl Page {
    fn next(&mut self) -> Value {
        serde_json::from_str(self.socket.read().unwrap().to_text().unwrap()).unwrap()
    }

    /// The next message of which that is true.
    fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        loop {
            let message = self.next();
            if wanted(&message) {
                return message;
            }
        }
    }

    fn tell(&mut self, message: &Value) {
        self.socket.send(Message::text(message.to_string())).unwrap();
    }

    /// What is said against a message.
    fn refusal(&mut self, message: Message) -> String {
        self.socket.send(message).unwrap();
        self.until(|message| message["type"] == "error")["message"].as_str().unwrap().to_owned()
    }

    fn plays(&self, frame: &Value) -> bool {
        frame["type"] == "frame" && frame["player"] == self.hello["you"]
    }
}

fn is_new(frame: &Value) -> bool {
    frame["line"].as_str().is_some_and(|line| line.contains(", step 0:"))
}

#[test]
fn a_game_is_played_on_the_page_while_others_watch() {
    let dir = tempfile::tempdir().unwrap();
    let planner = planner(dir.path());
    let served = Served::new(&["tictactoe", "--bundle", planner.to_str().unwrap(), "--simulations", "8"]);
    let (mut page, mut other) = (served.open(), served.open());
    assert_eq!((&page.hello["env"], &page.hello["seats"]), (&json!("tictactoe"), &json!(["first", "second"])));
    assert_eq!(page.refusal(Message::text(json!({ "type": "click", "x": 0.5, "y": 0.5 }).to_string())), "take a seat first");

    page.tell(&json!({ "type": "play", "seat": 0 }));
    let mut seen = page.until(|message| message["player"] == 1);
    assert!(page.plays(&seen) && is_new(&seen) && seen["waits"] == true, "{seen}");
    // Visits and a value over squares.
    assert!(seen["marks"].as_array().unwrap().len() >= 2 && seen["search"].as_str().unwrap().starts_with("search: "));
    let play = json!({ "type": "play", "seat": 1 }).to_string();
    other.until(|message| message["player"] == 1);
    assert_eq!(other.refusal(Message::text(play)), "somebody else plays");

    // Squares one after the other until the game is over; what cannot be played is refused, and the game goes on.
    let (mut square, mut refused) = (0, 0);
    while seen["ended"] != true {
        let [x, y] = [square % 3, square / 3].map(|x| x as f32 + 0.5);
        page.tell(&json!({ "type": "click", "x": x, "y": y }));
        let number = seen["number"].as_u64().unwrap();
        let answer = page.until(|message| message["type"] == "error" || message["number"].as_u64() > Some(number));
        if answer["type"] == "error" {
            assert!(answer["message"].as_str().unwrap().contains("cannot be played: expected one of "), "{answer}");
            refused += 1;
        } else if answer["waits"] != true && answer["ended"] != true {
            seen = page.until(|message| message["waits"] == true || message["ended"] == true);
        } else {
            seen = answer;
        }
        square += 1;
    }
    assert!(square - refused >= 3, "{square} moves, {refused} refused");
    let line = seen["line"].as_str().unwrap();
    assert!(line.contains("; won by ") || line.contains("; a draw"), "{line}");
    // The end stays to be seen until another game is asked for; who goes away leaves the seat.
    page.tell(&json!({ "type": "play", "seat": 1 }));
    page.until(|message| message["waits"] == true);
    drop(page);
    other.until(|message| message["type"] == "frame" && message["player"].is_null());
    other.tell(&json!({ "type": "play", "seat": 1 }));
    let seen = other.until(|message| message["waits"] == true);
    assert!(other.plays(&seen) && seen["line"].as_str().unwrap().contains("step 1: "), "{seen}");
}

#[test]
fn a_duel_with_a_policy_goes_on_while_keys_are_held_and_whatever_else_is_said() {
    let served = Served::new(&["duel", "--bundle", POLICY]);
    // One that never reads holds up nobody.
    let _asleep = served.open();
    let mut page = served.open();
    assert_eq!(page.hello["seats"], json!(["Marth", "Fox"]));
    page.tell(&json!({ "type": "play", "seat": 1 }));
    let you = page.hello["you"].clone();
    let first = page.until(|message| message["player"] == you && message["seat"] == 1);
    page.tell(&json!({ "type": "keys", "down": ["arrowleft"] }));
    // The fighter of the one who plays has a colour of its own.
    let at = |frame: &Value| {
        let own = |shape: &&Value| shape["kind"] == "rectangle" && shape["color"] == json!([90, 160, 255]);
        frame["scene"]["shapes"].as_array().unwrap().iter().find(own).unwrap()["x"].as_f64().unwrap()
    };
    let start = at(&first);
    let moved = page.until(|message| message["type"] == "frame" && at(message) < start - 5.0);
    assert!(moved["number"].as_u64() > first["number"].as_u64() && moved["waits"] == false);

    let garbage = [
        (Message::text("{"), "a message that means nothing: "),
        (Message::text(json!({ "type": "dance" }).to_string()), "unknown variant `dance`"),
        (Message::text(json!({ "type": "play", "seat": 2 }).to_string()), "there is no such seat"),
        (Message::text(json!({ "type": "play", "seat": -1 }).to_string()), "a message that means nothing: "),
        (Message::text(json!({ "type": "move", "number": 1 }).to_string()), "it is not your turn"),
        (Message::binary(vec![0, 159, 146, 150]), "expected a message as text"),
    ];
    for (message, why) in garbage {
        let told = page.refusal(message.clone());
        assert!(told.contains(why), "{message}: {told}");
    }
    // A message that is too long closes its own socket and no other.
    let mut long = served.open();
    let _ = long.socket.send(Message::text(" ".repeat(1 << 16)));
    while long.socket.read().is_ok() {}
    let last = page.until(|message| message["type"] == "frame");
    page.tell(&json!({ "type": "leave" }));
    let after = page.until(|message| message["type"] == "frame" && message["player"].is_null());
    assert!(after["number"].as_u64() > last["number"].as_u64());
}

#[test]
fn the_page_stands_alone_and_other_pages_are_kept_out() {
    let served = Served::new(&["freeway"]);
    let mut http = TcpStream::connect(&served.address).unwrap();
    http.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    write!(http, "GET / HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", served.address).unwrap();
    let mut page = String::new();
    http.read_to_string(&mut page).unwrap();
    assert!(page.starts_with("HTTP/1.1 200 OK") && page.contains("<canvas ") && !page.contains("://"), "{page}");

    let from = |origin: &str| {
        let mut request = format!("ws://{}/socket", served.address).into_client_request().unwrap();
        request.headers_mut().insert("origin", origin.parse().unwrap());
        tungstenite::connect(request)
    };
    assert!(from(&format!("http://{}", served.address)).is_ok());
    let refused = from("http://elsewhere.example").unwrap_err().to_string();
    assert!(refused.contains("403"), "{refused}");
    // Keys of an environment that is played by them.
    let mut page = served.open();
    assert_eq!(page.hello["keys"], "arrows to move, space to fire");
    page.tell(&json!({ "type": "play", "seat": 0 }));
    page.tell(&json!({ "type": "keys", "down": ["arrowup"] }));
    let own = |frame: &Value| frame["scene"]["shapes"].as_array().unwrap().last().unwrap()["y"].as_f64().unwrap();
    page.until(|message| message["type"] == "frame" && own(message) < 6.0);
}
