//! What a model costs over a socket: candle-serve beside a bare echo of the same bytes, and its start.

mod app;
mod client;
mod echo;
mod grpc;
mod guarded;
mod trouble;

use crate::case::{Case, Pass};
use crate::harness::{self, Comparison, FRAME, Settings, Subject, Timed};
use crate::host::Host;
use crate::network::Network;
use crate::stats::{Summary, median, sorted};
use crate::suite::{Common, Python, Suite, SuiteRun};
use crate::target::{Limit, TargetRow};
use anyhow::{Context, Result, ensure};
use app::App;
use candle_core::DType;
use candle_models::cli;
use candle_models::engine::{self, Engine, Model, Placement};
use candle_models::random::Random;
use candle_serve::{Address, Options, Server};
use client::{Begin, Client, request};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// Requests over sockets, beside a bare echo of the same bytes: one client and many, HTTP and gRPC, a Unix socket, TLS, and sequences that are stepped
/// together at 60 Hz; and beside a Python app that serves the same network.
#[derive(clap::Args)]
pub struct Serve {
    #[command(flatten)]
    common: Common,
    /// Clients that ask again as soon as they have their answers.
    #[arg(long, value_name = "N", default_value_t = 64)]
    clients: usize,
    /// Sequences that one request steps, sixty times a second.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    sequences: usize,
    /// Such requests.
    #[arg(long, value_name = "N", default_value_t = 2400)]
    requests: usize,
    /// Connections that ask nothing, beside which a client is timed.
    #[arg(long, value_name = "N", default_value_t = 5000)]
    idle: usize,
    /// How often the model is unloaded and loaded again while the memory is watched.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    cycles: usize,
    /// The Python that has the app's libraries.
    #[command(flatten)]
    python: Python,
    /// The folder of bundles whose start is timed.
    #[arg(long, value_name = "DIR", default_value = "weights")]
    folder: PathBuf,
}

impl Suite for Serve {
    const NAME: &'static str = "serve";
    const TITLE: &'static str = "The server";
    type Row = TargetRow;

    fn common(&self) -> &Common {
        &self.common
    }

    fn measure(&self, bench: &mut SuiteRun<TargetRow>) -> Result<()> {
        let common = &self.common;
        common.validate(&[&[self.clients], &[self.sequences], &[self.requests], &[self.idle], &[self.cycles]])?;
        bench.begin(&self.describe(), None);
        let host = bench.host.clone();
        for network in bench.networks(common, &["mlp"])? {
            for &threads in &common.threads {
                let suite = ServeSuite { arguments: self, network: &network, threads, host: &host };
                suite.run(|row| bench.add(row))?;
            }
        }
        bench.add(&self.start(&host)?);
        Ok(())
    }
}

/// The name under which the model is served.
const MODEL: &str = "model";
/// Turns of either side in a comparison of rates.
const TURNS: usize = 6;
/// Starts whose median counts.
const STARTS: usize = 5;

impl Serve {
    fn describe(&self) -> String {
        let settings = &self.common.settings;
        format!(
            "Server, echo and clients share this process and its processors; the server serves connections as candle-serve does, the echo on a multi-threaded runtime. The echo reads every request and answers \
             with as many bytes as the server, over gRPC by tonic without looking into messages. Clients send HTTP/1.1 or gRPC over connections that stay, tensors behind the JSON or in \
             raw_input_contents, one row without a sequence, and wait for every answer. The app in Python is FastAPI on uvicorn with ONNX Runtime, with JSON in and out. Warm-up {} s each, \
             then {} rounds of {} s of either side in turn, the first mover changing; a ratio is the median of those of rounds, with its 95% bootstrap interval. Beside the model: the median of a \
             request less that of the echo and less that of a step of a session in this process. Rates: {} clients, {TURNS} turns of each side. Sequences: one request steps all of them, sixty a \
             second are due; a time counts from when its request was due, so that one which came late delays those behind it. Beside something: the 99th percentile of one \
             client's requests, in windows with it and without in turn.",
            settings.warm_up_s, settings.rounds, settings.window_s, self.clients
        )
    }

    /// From the options to the moment when every bundle of the folder is served.
    fn start(&self, host: &Host) -> Result<TargetRow> {
        let (mut seconds, mut served) = (Vec::new(), 0);
        for _ in 0..STARTS {
            let began = Instant::now();
            let running =
                Running::start(Options { http: vec![free_port()], grpc: Vec::new(), ..Options::new(&self.folder) }, &self.common.settings)?;
            seconds.push(began.elapsed().as_secs_f64());
            served = running.models;
        }
        let case = Case::of("all bundles", Pass::Step, [served, 1, 1], "as stored");
        let evidence = format!(
            "{served} models, median of {STARTS} starts with warm caches, {:.3} to {:.3} s",
            sorted(&seconds)[0],
            sorted(&seconds)[STARTS - 1]
        );
        Ok(TargetRow::new(host, case, "from start to ready", (median(&sorted(&seconds)), Limit::AtMost(0.5), "s"), evidence))
    }
}

fn free_port() -> Address {
    Address::Tcp(([127, 0, 0, 1], 0).into())
}

/// A server with its runtime.
struct Running {
    // In the order in which they end.
    server: Server,
    _runtime: Runtime,
    models: usize,
}

fn runtime() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().enable_all().build()?)
}

impl Running {
    fn start(options: Options, settings: &Settings) -> Result<Self> {
        settings.interrupt.check()?;
        let runtime = runtime()?;
        let (server, models) = runtime.block_on(async {
            let server = Server::start(options, candle_models::families::shipped()).await?;
            let models = server.load().await?;
            Ok::<_, anyhow::Error>((server, models))
        })?;
        ensure!(models > 0, "no bundle is served: {:?}", server.failures());
        Ok(Self { server, _runtime: runtime, models })
    }
}

/// What is measured of a model.
struct ServeSuite<'a> {
    arguments: &'a Serve,
    network: &'a Network,
    threads: usize,
    host: &'a Host,
}

/// A client of one kind, and where it is connected to: the server or an echo.
type Connect<'a> = &'a dyn Fn() -> Result<Box<dyn Subject + Send>>;

/// What is asked in one protocol.
struct Way<'a> {
    /// What a row's name begins with.
    what: &'static str,
    ours: Connect<'a>,
    echo: Connect<'a>,
}

impl ServeSuite<'_> {
    fn run(&self, mut seen: impl FnMut(&TargetRow)) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let model = self.network.load()?;
        let server = self.serve(self.plain(scratch.path()))?;
        let [tcp, unix] = server.server.addresses() else { anyhow::bail!("expected two addresses") };
        let call = &server.server.grpc_addresses()[0];
        let one = request(model.signature(), MODEL, 1, None, "")?;
        let message = grpc::message(model.signature(), MODEL)?;
        let length = Client::connect(tcp, one.clone())?.ask()?.len();
        let answer = grpc::Caller::connect(call, &message)?.call()?;
        let runtime = runtime()?;
        let echo = runtime.block_on(echo::echo(vec![b'0'; length].into()))?;
        let call_echo = runtime.block_on(grpc::echo(answer))?;
        let http = |address: &Address| Ok(Box::new(Client::connect(address, one.clone())?) as Box<dyn Subject + Send>);
        let calls = |address: &Address| Ok(Box::new(grpc::Caller::connect(address, &message)?) as Box<dyn Subject + Send>);
        let step = self.step(&*model)?;
        for way in [
            Way { what: "request", ours: &|| http(tcp), echo: &|| http(&echo) },
            Way { what: "gRPC request", ours: &|| calls(call), echo: &|| calls(&call_echo) },
        ] {
            self.over_echo(&way, step)?.iter().for_each(&mut seen);
            seen(&self.rates(&way)?);
        }
        seen(&self.unix(&|| http(unix), &|| http(tcp))?);
        self.guarded(&*model, [tcp, unix], scratch.path())?.iter().for_each(&mut seen);
        seen(&self.app(&*model, &|| http(tcp), scratch.path())?);
        seen(&self.together(&*model, tcp)?);
        self.trouble(&one, tcp)?.iter().for_each(&mut seen);
        Ok(())
    }

    fn options(&self) -> engine::Options {
        let rows = self.arguments.sequences;
        let room = rows + self.arguments.clients;
        engine::Options { place: Placement::cpu(self.threads), sessions: room, queue: room, max_batch: rows, ..engine::Options::default() }
    }

    /// The model behind a port and a Unix socket for HTTP, and a port for gRPC.
    fn plain(&self, scratch: &Path) -> Options {
        Options {
            model_name: Some(MODEL.to_owned()),
            http: vec![free_port(), Address::Unix(scratch.join("socket"))],
            grpc: vec![free_port()],
            engine: self.options(),
            ..Options::new(&self.network.bundle)
        }
    }

    fn serve(&self, mut options: Options) -> Result<Running> {
        options.limits.connections += self.arguments.idle;
        Running::start(options, &self.arguments.common.settings)
    }

    fn row(&self, what: &str, batch: usize, figure: (f64, Limit, &str), evidence: String) -> TargetRow {
        TargetRow::new(self.host, self.network.case(Pass::Step, batch, 1, self.threads), what, figure, evidence)
    }

    /// One client of the server and one of something else in turn.
    fn compare(&self, ours: Connect<'_>, theirs: Connect<'_>) -> Result<Comparison> {
        harness::compare(&mut Timed(ours()?), &mut Timed(theirs()?), &self.arguments.common.settings)
    }

    /// The median of one over that of another, each named.
    fn over(&self, what: &str, found: &Comparison, limit: f64, other: &str) -> TargetRow {
        let evidence = format!("{:.1} us, {other} {:.1} us, {} rounds", found.ours_us.p50, found.theirs_us.p50, found.rounds);
        let mut row = self.row(what, 1, (1.0 / found.ratio, Limit::AtMost(limit), "x"), evidence);
        row.found_ci = Some(found.ratio_ci.inverse());
        row
    }

    /// One client: over the echo, and beside the model.
    fn over_echo(&self, Way { what, ours, echo }: &Way<'_>, step: f64) -> Result<Vec<TargetRow>> {
        let found = self.compare(ours, echo)?;
        let p99 = |summary: &Summary| summary.p99.unwrap_or(f64::NAN);
        let (slow, slow_echo) = (p99(&found.ours_us), p99(&found.theirs_us));
        let own = found.ours_us.p50 - found.theirs_us.p50 - step;
        let evidence = format!("{slow:.1} us, echo {slow_echo:.1} us");
        Ok(vec![
            self.over(&format!("{what} over echo, median"), &found, 1.3, "echo"),
            self.row(&format!("{what} over echo, p99"), 1, (slow / slow_echo, Limit::AtMost(1.5), "x"), evidence),
            self.row(
                &format!("{what} in the server beside the model"),
                1,
                (own, Limit::AtMost(15.0), "us"),
                format!("a step alone takes {step:.1} us"),
            ),
        ])
    }

    fn unix(&self, unix: Connect<'_>, tcp: Connect<'_>) -> Result<TargetRow> {
        Ok(self.over("Unix socket over TCP, median", &self.compare(unix, tcp)?, 0.85, "TCP"))
    }

    /// The app in Python over the server.
    fn app(&self, model: &dyn Model, ours: Connect<'_>, scratch: &Path) -> Result<TargetRow> {
        let what = "FastAPI with ONNX Runtime over the server, median";
        let app = match App::start(&self.arguments.python, self.network, self.threads, scratch) {
            Ok(app) => app,
            Err(error) => {
                return Ok(self.row(what, 1, (f64::NAN, Limit::AtLeast(1.0), "x"), cli::one_line_of(&error)));
            }
        };
        let found = self.compare(ours, &|| Ok(Box::new(app.client(model.signature())?)))?;
        let evidence = format!("{:.1} us, the server {:.1} us, {} rounds", found.theirs_us.p50, found.ours_us.p50, found.rounds);
        let mut row = self.row(what, 1, (found.ratio, Limit::AtLeast(1.0), "x"), evidence);
        row.found_ci = Some(found.ratio_ci);
        Ok(row)
    }

    /// The median of a step of a session in this process, in microseconds.
    fn step(&self, model: &dyn Model) -> Result<f64> {
        let engine = Engine::start(self.network.load()?, &self.options())?;
        let mut session = engine.open()?;
        for spec in model.signature().inputs.iter().filter(|spec| spec.is_required()) {
            let values = spec.draw(&[1], &Random::new(1))?.flatten_all()?;
            match spec.dtype() {
                DType::U32 => session.set_u32(&spec.name, &values.to_vec1()?)?,
                _ => session.set_f32(&spec.name, &values.to_vec1()?)?,
            }
        }
        struct Steps(engine::Session);
        impl Subject for Steps {
            fn run(&mut self) -> Result<()> {
                Ok(self.0.step()?)
            }
        }
        Ok(harness::measure(&mut Timed(Steps(session)), &self.arguments.common.settings)?.latency_us.p50)
    }

    /// Many clients that ask again at once.
    fn rates(&self, Way { what, ours, echo }: &Way<'_>) -> Result<TargetRow> {
        let mut found = Vec::with_capacity(TURNS);
        for turn in 0..TURNS {
            let sides = if turn % 2 == 0 { [ours, echo] } else { [echo, ours] };
            let [first, second] = [self.rate(*sides[0])?, self.rate(*sides[1])?];
            found.push(if turn % 2 == 0 { [first, second] } else { [second, first] });
        }
        let of = |side: usize| median(&sorted(&found.iter().map(|rates| rates[side]).collect::<Vec<_>>()));
        let ratios: Vec<f64> = found.iter().map(|[ours, theirs]| ours / theirs).collect();
        let (clients, ours, theirs) = (self.arguments.clients, of(0), of(1));
        let evidence = format!("{clients} clients: {ours:.0} a second, echo {theirs:.0}, {TURNS} turns");
        Ok(self.row(&format!("{what}s a second over the echo's"), 1, (median(&sorted(&ratios)), Limit::AtLeast(0.75), "x"), evidence))
    }

    /// Requests a second of all clients.
    fn rate(&self, connect: Connect<'_>) -> Result<f64> {
        let Serve { clients, common, .. } = self.arguments;
        let (over, barrier) = (AtomicBool::new(false), Barrier::new(clients + 1));
        let connected = (0..*clients).map(|_| connect()).collect::<Result<Vec<_>>>()?;
        let window = Duration::from_secs_f64(common.settings.window_s.max(0.01) * 2.0);
        std::thread::scope(|scope| {
            let (over, barrier) = (&over, &barrier);
            let ask = |mut client: Box<dyn Subject + Send>| {
                scope.spawn(move || {
                    let connected = client.run();
                    barrier.wait();
                    connected?;
                    let mut answers = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        client.run()?;
                        answers += 1;
                    }
                    Ok::<_, anyhow::Error>(answers)
                })
            };
            let threads: Vec<_> = connected.into_iter().map(ask).collect();
            barrier.wait();
            let began = Instant::now();
            std::thread::sleep(window);
            over.store(true, Ordering::Relaxed);
            let seconds = began.elapsed().as_secs_f64();
            let answers = threads.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))?);
            Ok(answers.sum::<Result<u64>>()? as f64 / seconds)
        })
    }

    /// Sequences that are stepped together, sixty times a second.
    fn together(&self, model: &dyn Model, tcp: &Address) -> Result<TargetRow> {
        let Serve { sequences, requests, common, .. } = self.arguments;
        let of = |begin| request(model.signature(), MODEL, *sequences, Some(begin), "");
        Client::connect(tcp, of(Begin::Start)?)?.ask()?;
        let mut client = Client::connect(tcp, of(Begin::GoOn)?)?;
        let (mut times, mut own, mut due) = (Vec::with_capacity(*requests), Vec::with_capacity(*requests), Instant::now());
        for number in 0..*requests {
            if number % 60 == 0 {
                common.settings.interrupt.check()?;
            }
            due += FRAME;
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            let sent = Instant::now();
            client.ask()?;
            times.push((Instant::now() - due).as_secs_f64() * 1e3);
            own.push(sent.elapsed().as_secs_f64() * 1e3);
        }
        let summary = Summary::of(&times).context("no request was timed")?;
        let p99_9 = summary.p99_9.unwrap_or(f64::NAN);
        let own = Summary::of(&own).context("no request was timed")?.p50;
        let evidence =
            format!("median {:.2} ms, from sending {own:.2} ms, greatest {:.2} ms of {requests} requests", summary.p50, summary.max);
        Ok(self.row("sequences in one request at 60 Hz, p99.9", *sequences, (p99_9, Limit::AtMost(4.0), "ms"), evidence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use clap::{Args, FromArgMatches};

    fn arguments() -> Serve {
        let command = Serve::augment_args(clap::Command::new("serve"));
        let sizes = [
            "serve",
            "--clients",
            "2",
            "--sequences",
            "3",
            "--requests",
            "5",
            "--idle",
            "9",
            "--cycles",
            "3",
            "--python",
            "/nowhere/python",
        ];
        let times = ["--warm-up", "0", "--window-length", "0.01", "--rounds", "4", "--limit", "0"];
        Serve::from_arg_matches(&command.get_matches_from(sizes.into_iter().chain(times))).unwrap()
    }

    /// Every figure is there, of a server that answers; how large it is depends on the machine.
    #[test]
    fn every_figure_of_a_server_is_measured() {
        let directory = tempfile::tempdir().unwrap();
        let network = testing::network("mlp", directory.path());
        let arguments = arguments();
        let host = Host::detect(Some("test".into()));
        let mut rows = Vec::new();
        ServeSuite { arguments: &arguments, network: &network, threads: 1, host: &host }.run(|row| rows.push(row.clone())).unwrap();
        assert_eq!(rows.len(), 19);
        for row in &rows {
            assert!(row.found.is_finite() || row.what.contains("p99") || row.what.contains("FastAPI"), "{row:?}");
        }
        assert!(rows.iter().all(|row| row.case.batch == 1 || row.case.batch == arguments.sequences));
    }
}
