//! What a model costs over a socket: candle-serve beside a bare echo of the same bytes, and its start.

mod client;
mod echo;
mod trouble;

use crate::case::{Case, Pass};
use crate::harness::{self, Comparison, FRAME, Settings, Timed};
use crate::host::Host;
use crate::network::Network;
use crate::stats::{Summary, median, sorted};
use crate::suite::{Common, Suite, SuiteRun};
use crate::target::{Limit, TargetRow};
use anyhow::{Context, Result, ensure};
use candle_core::DType;
use candle_models::engine::{self, Engine, Model, Placement};
use candle_models::random::Random;
use candle_serve::{Address, Options, Server};
use client::{Begin, Client, request};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// Requests over sockets, beside a bare echo of the same bytes: one client, many, a Unix socket, and sequences that are stepped together at 60 Hz.
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
             with as many bytes as the server. Clients send HTTP/1.1 over connections that stay, tensors behind the JSON, one row without a sequence, and wait for every answer. Warm-up {} s each, \
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

impl ServeSuite<'_> {
    fn run(&self, mut seen: impl FnMut(&TargetRow)) -> Result<()> {
        let scratch = tempfile::tempdir()?;
        let model = self.network.load()?;
        let server = self.serve(scratch.path())?;
        let addresses = server.server.addresses().to_vec();
        let [tcp, unix] = &addresses[..] else { anyhow::bail!("expected two addresses, found {}", addresses.len()) };
        let one = request(model.signature(), MODEL, 1, None)?;
        let length = Client::connect(tcp, one.clone())?.ask()?.len();
        let runtime = runtime()?;
        let echo = runtime.block_on(echo::echo(vec![b'0'; length].into()))?;
        for row in self.alone(&*model, &one, [tcp, unix, &echo])? {
            seen(&row);
        }
        seen(&self.rates(&one, tcp, &echo)?);
        seen(&self.together(&*model, tcp)?);
        for row in self.trouble(&one, tcp)? {
            seen(&row);
        }
        Ok(())
    }

    fn options(&self) -> engine::Options {
        let rows = self.arguments.sequences;
        let room = rows + self.arguments.clients;
        engine::Options { place: Placement::cpu(self.threads), sessions: room, queue: room, max_batch: rows, ..engine::Options::default() }
    }

    fn serve(&self, scratch: &Path) -> Result<Running> {
        let http = vec![free_port(), Address::Unix(scratch.join("socket"))];
        let mut options = Options {
            model_name: Some(MODEL.to_owned()),
            http,
            grpc: Vec::new(),
            engine: self.options(),
            ..Options::new(&self.network.bundle)
        };
        options.limits.connections += self.arguments.idle;
        Running::start(options, &self.arguments.common.settings)
    }

    fn row(&self, what: &str, batch: usize, figure: (f64, Limit, &str), evidence: String) -> TargetRow {
        TargetRow::new(self.host, self.network.case(Pass::Step, batch, 1, self.threads), what, figure, evidence)
    }

    /// One client: over the echo, beside the model, over a Unix socket.
    fn alone(&self, model: &dyn Model, one: &[u8], [tcp, unix, echo]: [&Address; 3]) -> Result<Vec<TargetRow>> {
        let settings = &self.arguments.common.settings;
        let client = |address: &Address| Ok::<_, anyhow::Error>(Timed(Client::connect(address, one.to_vec())?));
        let beside = harness::compare(&mut client(tcp)?, &mut client(echo)?, settings)?;
        let sockets = harness::compare(&mut client(unix)?, &mut client(tcp)?, settings)?;
        let step = self.step(model)?;
        let medians = |comparison: &Comparison, other: &str| {
            format!("{:.1} us, {other} {:.1} us, {} rounds", comparison.ours_us.p50, comparison.theirs_us.p50, comparison.rounds)
        };
        let mut over = self.row("request over echo, median", 1, (1.0 / beside.ratio, Limit::AtMost(1.3), "x"), medians(&beside, "echo"));
        over.found_ci = Some(beside.ratio_ci.inverse());
        let p99 = |summary: &Summary| summary.p99.unwrap_or(f64::NAN);
        let (ours, theirs) = (p99(&beside.ours_us), p99(&beside.theirs_us));
        let own = beside.ours_us.p50 - beside.theirs_us.p50 - step;
        let mut socket =
            self.row("Unix socket over TCP, median", 1, (1.0 / sockets.ratio, Limit::AtMost(0.85), "x"), medians(&sockets, "TCP"));
        socket.found_ci = Some(sockets.ratio_ci.inverse());
        Ok(vec![
            over,
            self.row("request over echo, p99", 1, (ours / theirs, Limit::AtMost(1.5), "x"), format!("{ours:.1} us, echo {theirs:.1} us")),
            self.row("in the server beside the model", 1, (own, Limit::AtMost(15.0), "us"), format!("a step alone takes {step:.1} us")),
            socket,
        ])
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
        impl harness::Subject for Steps {
            fn run(&mut self) -> Result<()> {
                Ok(self.0.step()?)
            }
        }
        Ok(harness::measure(&mut Timed(Steps(session)), &self.arguments.common.settings)?.latency_us.p50)
    }

    /// Many clients that ask again at once.
    fn rates(&self, one: &[u8], tcp: &Address, echo: &Address) -> Result<TargetRow> {
        let mut found = Vec::with_capacity(TURNS);
        for turn in 0..TURNS {
            let sides = if turn % 2 == 0 { [tcp, echo] } else { [echo, tcp] };
            let [first, second] = [self.rate(one, sides[0])?, self.rate(one, sides[1])?];
            found.push(if turn % 2 == 0 { [first, second] } else { [second, first] });
        }
        let of = |side: usize| median(&sorted(&found.iter().map(|rates| rates[side]).collect::<Vec<_>>()));
        let ratios: Vec<f64> = found.iter().map(|[ours, theirs]| ours / theirs).collect();
        let (clients, ours, theirs) = (self.arguments.clients, of(0), of(1));
        let evidence = format!("{clients} clients: {ours:.0} requests a second, echo {theirs:.0}, {TURNS} turns");
        Ok(self.row("requests a second over the echo's", 1, (median(&sorted(&ratios)), Limit::AtLeast(0.75), "x"), evidence))
    }

    /// Requests a second of all clients.
    fn rate(&self, one: &[u8], address: &Address) -> Result<f64> {
        let Serve { clients, common, .. } = self.arguments;
        let (over, barrier) = (AtomicBool::new(false), Barrier::new(clients + 1));
        let connected = (0..*clients).map(|_| Client::connect(address, one.to_vec())).collect::<Result<Vec<_>>>()?;
        let window = Duration::from_secs_f64(common.settings.window_s.max(0.01) * 2.0);
        std::thread::scope(|scope| {
            let (over, barrier) = (&over, &barrier);
            let ask = |mut client: Client| {
                scope.spawn(move || {
                    let connected = client.ask().map(drop);
                    barrier.wait();
                    connected?;
                    let mut answers = 0u64;
                    while !over.load(Ordering::Relaxed) {
                        client.ask()?;
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
        let of = |begin| request(model.signature(), MODEL, *sequences, Some(begin));
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
        let sizes = ["serve", "--clients", "2", "--sequences", "3", "--requests", "5", "--idle", "9", "--cycles", "3"];
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
        assert_eq!(rows.len(), 12);
        for row in &rows {
            assert!(row.found.is_finite() || row.what.contains("p99"), "{row:?}");
        }
        assert!(rows.iter().all(|row| row.case.batch == 1 || row.case.batch == arguments.sequences));
    }
}
