//! The other side of a comparison: processes that hold the same network and answer one JSON line per request, one in Python and one in Rust.
//!
//! Requests are `{"op": "hello"}`, `{"op": "prepare", ...}` with the fields of [`PeerCase`], `{"op": "round", "calls": n}` and `{"op": "peak"}`;
//! an answer is `{"ok": {...}}`, `{"error": "one line"}` or `{"unavailable": "one line"}` where a
//! library is not installed or has no such pass. A process lives as long as the comparison, so rounds can
//! be interleaved without starting an interpreter in between.

use crate::case::Pass;
use crate::harness::{Round, Rounds};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Which library runs the network over there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Library {
    /// PyTorch, eager.
    Pytorch,
    /// PyTorch through `torch.compile`; on the CPU that takes a C++ compiler.
    PytorchCompile,
    /// PyTorch, eager, captured as one CUDA graph with its copies.
    PytorchGraphs,
    /// ONNX Runtime: a step that candle-models exported, a window that PyTorch exported.
    Onnxruntime,
    /// OpenVINO, on the step that candle-models exported.
    Openvino,
    /// JAX, jitted, on the CPU.
    Jax,
    /// tract, on the step that candle-models exported.
    Tract,
    /// Plain Candle, without the operations of candle-models.
    Candle,
    /// Burn on its CPU backend flex.
    Burn,
}

/// The program that answers for a library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// `candle-bench/peers/peer.py`.
    Python,
    /// The crate `candle-bench/peers/rust`.
    Rust,
}

impl Library {
    /// Who answers for it.
    pub fn side(self) -> Side {
        match self {
            Self::Tract | Self::Candle | Self::Burn => Side::Rust,
            Self::Pytorch | Self::PytorchCompile | Self::PytorchGraphs | Self::Onnxruntime | Self::Openvino | Self::Jax => Side::Python,
        }
    }

    /// Whether it runs a step that candle-models exports.
    pub fn runs_exported_steps(self) -> bool {
        matches!(self, Self::Onnxruntime | Self::Openvino | Self::Tract)
    }

    /// Whom limits of a pass on the CPU are judged against: every library that has the pass. torch.compile is left out, which takes minutes a
    /// case and unrolls the scan's loop over the frames.
    pub fn rivals(pass: Pass) -> &'static [Self] {
        match pass {
            Pass::Step => &[Self::Onnxruntime, Self::Openvino, Self::Tract, Self::Candle, Self::Burn, Self::Pytorch, Self::Jax],
            Pass::Window => &[Self::Onnxruntime, Self::Pytorch, Self::Jax],
            Pass::Train => &[Self::Pytorch, Self::Jax],
            Pass::Product => &[Self::Pytorch],
        }
    }

    /// Its name on the command line: `pytorch-compile`.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// The package whose version counts, and in which form it runs where it has several.
    fn package(self) -> (String, &'static str) {
        match self {
            Self::PytorchCompile => (Self::Pytorch.name(), " compiled"),
            Self::PytorchGraphs => (Self::Pytorch.name(), " in a CUDA graph"),
            other => (other.name(), ""),
        }
    }
}

/// The work that the peer is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PeerCase {
    /// The library.
    pub library: Library,
    /// `cpu` or `cuda:0`.
    pub device: String,
    /// In which PyTorch computes on a GPU: `f32` or `bf16`.
    pub dtype: String,
    /// Directory with `config.json` and `model.safetensors`.
    pub bundle: PathBuf,
    /// Its step as candle-models exports it, for the libraries that run one.
    pub onnx: Option<PathBuf>,
    /// What one call does.
    pub pass: Pass,
    /// Rows of a call.
    pub batch: usize,
    /// Frames of a row.
    pub frames: usize,
    /// Threads of a call.
    pub threads: usize,
    /// The inputs by name, `[B, T, ...]`, as safetensors.
    pub inputs: PathBuf,
    /// Where the peer writes the outputs of its first call, by name, as safetensors.
    pub outputs: PathBuf,
}

/// Versions of a peer's libraries by name; `None` for what is not installed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Versions(BTreeMap<String, Option<String>>);

impl Versions {
    /// `onnxruntime 1.25.1`.
    pub fn of(&self, library: Library) -> String {
        let (name, form) = library.package();
        self.package(&name) + form
    }

    /// The same of a package that a library is used through.
    pub fn package(&self, name: &str) -> String {
        let version = self.0.get(name).and_then(Option::as_deref).unwrap_or("missing");
        format!("{name} {version}")
    }
}

/// A case that the peer cannot do for a reason of its own, while it can do others: a package that is not installed, a pass that a library
/// does not have, more threads than the case allows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not available: {reason}")]
pub struct Unavailable {
    /// In one line, with the remedy where there is one.
    pub reason: String,
}

#[derive(Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
enum Request<'a> {
    Hello,
    Prepare(&'a PeerCase),
    Round { calls: usize },
    Peak,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reply {
    Ok(serde_json::Value),
    Error(String),
    Unavailable(String),
}

/// The running process. It is ended when this value is dropped.
pub struct Peer {
    child: Child,
    requests: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    name: String,
    versions: Versions,
}

impl Peer {
    /// Starts a program and waits until it has loaded its libraries.
    ///
    /// # Errors
    /// If it cannot be started or does not answer.
    pub fn start(mut command: Command) -> Result<Self> {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let name = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C is for this process, which ends the peer.
            .process_group(0)
            .spawn()
            .with_context(|| format!("{name}: cannot be started (candle-bench/peers/setup.sh makes what is needed)"))?;
        let (Some(requests), Some(replies)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{name}: has no pipes");
        };
        let replies = BufReader::new(replies);
        let mut peer = Self { child, requests: Some(requests), replies, name, versions: Versions::default() };
        peer.versions = peer.ask(&Request::Hello)?;
        Ok(peer)
    }

    /// What the peer runs on.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Sets up the work of the rounds to come and has its outputs written to `case.outputs`.
    ///
    /// # Errors
    /// [`Unavailable`] for a case that this peer does not have, also from its rounds; anything else is a failure.
    pub fn prepare(&mut self, case: &PeerCase) -> Result<()> {
        let _: serde_json::Value = self.ask(&Request::Prepare(case))?;
        Ok(())
    }

    /// The peak of the peer's resident set so far in KiB; before anything is prepared, what its libraries take.
    pub fn peak_kilobytes(&mut self) -> Result<u64> {
        self.ask(&Request::Peak)
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &Request) -> Result<T> {
        let line = serde_json::to_string(request)? + "\n";
        let requests = self.requests.as_mut().context("the peer is being ended")?;
        let sent = requests.write_all(line.as_bytes()).and_then(|()| requests.flush());
        let mut reply = String::new();
        let received = self.replies.read_line(&mut reply);
        if sent.is_err() || !matches!(received, Ok(n) if n > 0) {
            bail!("{}: ended without an answer to {}", self.name, line.trim_end());
        }
        match serde_json::from_str(&reply) {
            Ok(Reply::Ok(value)) => {
                serde_json::from_value(value).with_context(|| format!("{}: unexpected answer {}", self.name, reply.trim_end()))
            }
            Ok(Reply::Error(error)) => bail!("{}: {error}", self.name),
            Ok(Reply::Unavailable(reason)) => Err(Unavailable { reason }.into()),
            Err(_) => bail!("{}: not an answer: {}", self.name, reply.trim_end()),
        }
    }
}

impl Rounds for Peer {
    fn round(&mut self, calls: usize) -> Result<Round> {
        self.ask(&Request::Round { calls })
    }
}

/// The peers of a comparison, each started when the first of its libraries is asked for.
#[derive(Default)]
pub struct Processes {
    commands: BTreeMap<Side, Command>,
    running: BTreeMap<Side, Peer>,
    failed: BTreeMap<Side, Unavailable>,
}

impl Processes {
    /// Adds how a side is started.
    pub fn with(mut self, side: Side, command: Command) -> Self {
        self.commands.insert(side, command);
        self
    }

    /// The process that answers for a library.
    ///
    /// # Errors
    /// [`Unavailable`] where it does not start: the libraries of the other side may be there.
    pub fn of(&mut self, library: Library) -> Result<&mut Peer> {
        let side = library.side();
        if let Some(command) = self.commands.remove(&side) {
            match Peer::start(command) {
                Ok(peer) => drop(self.running.insert(side, peer)),
                Err(error) => drop(self.failed.insert(side, Unavailable { reason: format!("{error:#}") })),
            }
        }
        let missing = || self.failed.get(&side).cloned().unwrap_or_else(|| Unavailable { reason: format!("no peer in {side:?} here") });
        Ok(self.running.get_mut(&side).ok_or_else(missing)?)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The end of its input ends the peer's loop; a peer that hangs is killed. Neither failure can be acted upon.
        drop(self.requests.take());
        let patience = std::time::Instant::now();
        while patience.elapsed().as_secs() < 2 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn script(body: &str) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(body.as_bytes()).unwrap();
        file
    }

    fn command(program: &str, script: &Path) -> Command {
        let mut command = Command::new(program);
        command.arg(script);
        command
    }

    fn start(body: &str) -> Result<Peer> {
        Peer::start(command("sh", script(body).path()))
    }

    const HELLO: &str = r#"read -r line; [ "$line" = '{"op":"hello"}' ] || exit 1
echo '{"ok":{"pytorch":"2.11.0","onnxruntime":"1.25.1"}}'
"#;

    #[test]
    fn rounds_come_back_in_order() {
        let mut peer = start(&format!(
            r#"{HELLO}
while read -r line; do case "$line" in
  '{{"op":"round","calls":2}}') echo '{{"ok":{{"latencies_us":[3.0,4.0],"seconds":7e-6}}}}';;
  *) echo '{{"error":"no such request"}}';;
esac; done"#
        ))
        .unwrap();
        assert_eq!(peer.versions().of(Library::Onnxruntime), "onnxruntime 1.25.1");
        assert_eq!(peer.versions().of(Library::PytorchCompile), "pytorch 2.11.0 compiled");
        assert_eq!(peer.versions().of(Library::Jax), "jax missing");
        let round = peer.round(2).unwrap();
        assert_eq!((round.latencies_us, round.seconds), (vec![3.0, 4.0], 7e-6));
        let error = peer.round(3).unwrap_err().to_string();
        assert!(error.ends_with("no such request"), "{error}");
    }

    #[test]
    fn a_peer_that_dies_is_an_error() {
        let error = start("exit 3").err().unwrap().to_string();
        assert!(error.contains("ended without an answer"), "{error}");
        let mut peer = start(HELLO).unwrap();
        assert!(peer.round(1).unwrap_err().to_string().contains("ended without an answer"));
    }

    #[test]
    fn what_the_peer_does_not_have_is_told_from_a_failure() {
        let mut peer = start(&format!("{HELLO} read -r line; echo '{{\"unavailable\":\"no such package\"}}'")).unwrap();
        let error = peer.round(1).context("of a case").unwrap_err();
        assert_eq!(error.downcast_ref(), Some(&Unavailable { reason: "no such package".to_owned() }));
        assert!(!peer.round(1).unwrap_err().is::<Unavailable>(), "it has ended");
    }

    #[test]
    fn noise_on_the_line_is_an_error() {
        let error = start("read -r line; echo 'Warning: something'").err().unwrap().to_string();
        assert!(error.contains("not an answer: Warning: something"), "{error}");
    }

    #[test]
    fn a_missing_interpreter_says_how_to_get_one() {
        let error = Peer::start(command("/nowhere/python", Path::new("peer.py"))).err().unwrap().to_string();
        assert!(error.contains("/nowhere/python") && error.contains("setup.sh"), "{error}");
    }

    #[test]
    fn libraries_are_asked_for_where_they_are_and_one_side_does_without_the_other() {
        let python = script(HELLO);
        let mut processes = Processes::default()
            .with(Side::Python, command("sh", python.path()))
            .with(Side::Rust, Command::new("/nowhere/candle-bench-peer"));
        for _ in 0..2 {
            let error = processes.of(Library::Tract).err().unwrap();
            let Unavailable { reason } = error.downcast_ref().unwrap();
            assert!(reason.contains("/nowhere/candle-bench-peer") && reason.contains("setup.sh"), "{reason}");
            assert_eq!(processes.of(Library::Onnxruntime).unwrap().versions().of(Library::Onnxruntime), "onnxruntime 1.25.1");
        }
        assert!(Processes::default().of(Library::Jax).err().unwrap().is::<Unavailable>());
    }
}
