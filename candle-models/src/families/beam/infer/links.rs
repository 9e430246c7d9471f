//! Beam controllers on channels and measurements: closed loops, sweep by sweep, from the first beam to the decided pair.

use super::Options;
use super::episode::Episode;
use super::passes::{Network, Pass};
use super::picture::Scene;
use super::posterior::ByPosterior;
use super::sweeps::{Sweeps, at};
use crate::engine::{Model, Placement};
use crate::families::beam::baselines::{Estimator, Transmits};
use crate::families::beam::metrics::{SATISFIED_DB, decibels};
use crate::families::beam::{Beam, BeamConfig, Channels, Codebook, Sounder, Summary, measurement_noise};
use crate::files::write_atomic;
use crate::infer::{Opened, Output, Reader, Source, line};
use crate::random::Random;
use crate::tensors::NamedTensors;
use crate::{Error, Result as Found};
use anyhow::{Result, bail};
use candle_core::{Device, Tensor};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Sweeps that run together, as with named tensors.
const ROWS: usize = 64;
/// What stands for the file of channels that were drawn.
const GENERATED: &str = "generated";
/// The SNR where none is said.
const SNR_DB: f32 = 10.0;
/// Channels that are drawn where no input is named.
const DRAWN: usize = 1000;

/// The networks of a link, for so many sweeps side by side.
struct Networks {
    rows: usize,
    user: Network,
    decision: Network,
    base: Option<Network>,
}

impl Networks {
    /// All of them, by whose they are.
    fn each(&mut self) -> impl Iterator<Item = (&'static str, &mut Network)> {
        let base = self.base.as_mut().map(|base| ("the base station's", base));
        [("the user's", &mut self.user), ("the decision's", &mut self.decision)].into_iter().chain(base)
    }
}

/// The passes of each network of a link, by whose they are.
pub type Passes = Vec<(&'static str, Vec<Pass>)>;

/// A beam controller that aligns links.
pub struct Links {
    config: BeamConfig,
    user: Arc<dyn Model>,
    decision: Arc<dyn Model>,
    base: Option<Arc<dyn Model>>,
    /// What decides in place of the networks, if something does.
    posterior: Option<ByPosterior>,
    /// Where a picture goes, of the episode of this number, until it is drawn.
    picture: Option<(PathBuf, usize)>,
    /// The beams that the base station sweeps, `[C, 2 N_TX]`.
    swept: Vec<f32>,
    /// A sweep before its first measurement, from each beam of the codebook on.
    sounders: Vec<Sounder>,
    networks: Option<Networks>,
    place: Placement,
    seed: u64,
    snr_db: f32,
    every: Option<usize>,
    gains: Vec<f32>,
    satisfied: usize,
    episodes: usize,
    /// Of all episodes.
    measurements: u64,
    time: Duration,
    /// Of it by the posterior, summed over threads.
    decisions: Duration,
}

impl Links {
    /// The networks of a bundle, and the beams beside them.
    pub fn new(opened: &Opened, options: &Options, place: &Placement, every: Option<usize>) -> Found<Self> {
        let beam = Beam::load(&opened.bundle, &Device::Cpu)?;
        let sounders = (0..beam.config.codebook.count() as u32).map(|start| Sounder::new(&beam, start)).collect::<Found<_>>()?;
        let seed = options.seed.unwrap_or_default();
        let posterior = options.posterior.then(|| ByPosterior::new(&beam, Random::new(seed))).transpose();
        let posterior = posterior.map_err(|e| Error::Input(format!("--posterior: not with this controller: {e}")))?;
        Ok(Self {
            posterior,
            picture: options.html.clone().map(|path| (path, options.episode.unwrap_or_default())),
            swept: beam.swept()?.flatten_all()?.to_vec1()?,
            sounders,
            user: opened.model().clone(),
            decision: Arc::new(beam.decision),
            base: beam.base.map(|base| Arc::new(base) as Arc<dyn Model>),
            config: beam.config,
            networks: None,
            place: *place,
            seed,
            snr_db: options.snr.unwrap_or(SNR_DB),
            every,
            gains: Vec::new(),
            satisfied: 0,
            episodes: 0,
            measurements: 0,
            time: Duration::ZERO,
            decisions: Duration::ZERO,
        })
    }

    fn random(&self) -> Random {
        Random::new(self.seed)
    }

    /// Aligns links over channels like those of training.
    fn draw(&mut self, output: &mut Output) -> Result<()> {
        if matches!(output, Output::Table) {
            line(format_args!("{DRAWN} GENERATED channels of the model's configuration (seed {}, SNR {} dB)", self.seed, self.snr_db))?;
        }
        let sweeps = Sweeps::drawn(&self.config, DRAWN, self.random(), self.snr_db);
        self.all(&sweeps, Path::new(GENERATED), output)
    }

    /// Aligns the links of a file.
    fn file(&mut self, path: &Path, tensors: &NamedTensors, output: &mut Output) -> Result<()> {
        let sweeps = Sweeps::of(tensors, &self.config, self.random(), self.snr_db).map_err(|e| Error::file(path, e))?;
        self.all(&sweeps, path, output)
    }

    /// Aligns links over so many drawn channels: the means of the gain in dB and of its share of the channel's power, and the passes
    /// of the networks.
    pub fn rehearse(&mut self, count: usize) -> Found<([f64; 2], Passes)> {
        let sweeps = Sweeps::drawn(&self.config, count, self.random(), self.snr_db);
        let mut networks = self.networks(count)?;
        networks.each().for_each(|(_, network)| network.keep());
        let (mut networks, episodes) = self.block(networks, &sweeps, &(0..count), Path::new(GENERATED))?;
        let passes = networks.each().map(|(whose, network)| (whose, network.kept())).collect();
        let channels = sweeps.channels(&(0..count), &self.config)?;
        let mut sums = [0.0; 2];
        for (row, gain) in episodes.iter().enumerate().filter_map(|(row, episode)| Some((row, episode.gain?))) {
            let power = channels.as_ref().map_or(0.0, |channels| channels.at(row, sweeps.measurements - 1).power);
            sums[0] += decibels(gain);
            sums[1] += f64::from(gain / power.max(f32::MIN_POSITIVE));
        }
        Ok((sums.map(|sum| sum / count as f64), passes))
    }

    /// What these networks make of the inputs of another controller's passes over so many links.
    pub fn repeat(&mut self, count: usize, passes: &Passes) -> Found<Passes> {
        let mut networks = self.networks(count)?;
        networks.each().zip(passes).map(|((whose, network), (_, passes))| Ok((whose, network.repeat(passes)?))).collect()
    }

    fn all(&mut self, sweeps: &Sweeps, path: &Path, output: &mut Output) -> Result<()> {
        for first in (0..sweeps.count).step_by(ROWS) {
            let rows = first..sweeps.count.min(first + ROWS);
            let networks = self.networks(rows.len())?;
            let begun = Instant::now();
            let (networks, episodes) = self.block(networks, sweeps, &rows, path)?;
            self.time += begun.elapsed();
            self.networks = Some(networks);
            if let Some((file, number)) = self.picture.take_if(|(_, number)| rows.contains(number)) {
                let page = self.page(sweeps, number, &episodes[number - rows.start]).map_err(|e| Error::file(path, e))?;
                write_atomic(&file, page.as_bytes())?;
            }
            for (number, episode) in rows.zip(&episodes) {
                if number == 0 {
                    episode.start(sweeps, output)?;
                }
                let shown = self.every.is_some_and(|every| number.is_multiple_of(every));
                episode.write((sweeps, number), path, shown, output)?;
                self.gains.extend(episode.gain);
                self.satisfied += usize::from(episode.is_satisfied(sweeps.snr_db[number]));
            }
            self.episodes += episodes.len();
            self.measurements += (episodes.len() * sweeps.measurements) as u64;
        }
        Ok(())
    }

    /// A picture of an episode.
    fn page(&self, sweeps: &Sweeps, number: usize, episode: &Episode) -> Found<String> {
        let (channel, channels) = (&self.config.channel, sweeps.channels(&(number..number + 1), &self.config)?);
        let swept = Codebook::new(channel.transmit.elements(), self.swept.clone())?;
        let scene = Scene {
            number,
            snr_db: sweeps.snr_db[number],
            arrays: [&channel.receive, &channel.transmit],
            swept: &swept,
            sent: &sweeps.sent(number, &self.config),
            episode,
            channel: channels.as_ref().map(|channels| (channels.at(0, sweeps.measurements - 1), sweeps.has_paths())),
            estimator: Estimator::new(channel, swept.clone()),
            transmits: Transmits::of(self.config.scheme),
        };
        scene.page()
    }

    /// Those of the last block, if it was as large.
    fn networks(&mut self, rows: usize) -> Found<Networks> {
        if let Some(networks) = self.networks.take().filter(|networks| networks.rows == rows) {
            return Ok(networks);
        }
        let network = |model: &Arc<dyn Model>| Network::new(model, rows, &self.place);
        let base = self.base.as_ref().map(network).transpose()?;
        Ok(Networks { rows, user: network(&self.user)?, decision: network(&self.decision)?, base })
    }

    /// Runs some of the sweeps to their end.
    fn block(&mut self, mut networks: Networks, sweeps: &Sweeps, rows: &Range<usize>, path: &Path) -> Found<(Networks, Vec<Episode>)> {
        let channels = sweeps.channels(rows, &self.config).map_err(|e| Error::file(path, e))?;
        let random = self.random().stream("noise");
        let noise = |sweep: usize| measurement_noise(random, sweep as u64, sweeps.measurements, sweeps.snr_db[sweep]);
        let noise = rows.clone().map(noise).collect::<Found<Vec<_>>>()?;
        let mut sounders: Vec<_> = rows.clone().map(|i| self.sounders[sweeps.start[i] as usize].clone()).collect();
        let mut episodes: Vec<_> = sounders.iter().map(|_| Episode::default()).collect();
        for t in 0..sweeps.measurements {
            for (row, (sounder, episode)) in sounders.iter_mut().zip(&mut episodes).enumerate() {
                let sweep = rows.start + row;
                if let Some(beam) = sweeps.beam(sweep, t) {
                    sounder.follow(beam).map_err(at(path, sweep))?;
                }
                let y = sweeps.measured(sweep, t).unwrap_or_else(|| self.measure(channels.as_ref(), row, sounder, &noise[row]));
                episode.beams.extend_from_slice(sounder.beam());
                episode.measurements.extend(y);
                sounder.observe(y, sweeps.snr_db[sweep], networks.user.runner.floats_mut("features", row)?).map_err(at(path, sweep))?;
            }
            networks.user.step(&vec![t == 0; rows.len()])?;
            for (row, sounder) in sounders.iter_mut().enumerate() {
                sounder.follow(networks.user.runner.floats("beam", row)?).map_err(at(path, rows.start + row))?;
            }
        }
        match &self.posterior {
            Some(posterior) => {
                let took = posterior.decide(&self.config, sweeps, rows.start, &mut episodes).map_err(|e| Error::file(path, e))?;
                self.decisions += took;
            }
            None => self.decide(&mut networks, &sounders, &mut episodes)?,
        }
        if let Some(channels) = channels {
            for (row, episode) in episodes.iter_mut().enumerate() {
                let gain = channels.at(row, sweeps.measurements - 1).gain(&episode.receive, &episode.transmit);
                let overflow = || at(path, rows.start + row)(Error::Input(format!("expected a finite gain, found {gain}")));
                episode.gain = Some(gain.is_finite().then_some(gain).ok_or_else(overflow)?);
            }
        }
        Ok((networks, episodes))
    }

    /// What is received over a channel, `[re, im]`; noise alone where there is none.
    fn measure(&self, channels: Option<&Channels>, row: usize, sounder: &Sounder, noise: &[f32]) -> [f32; 2] {
        let (t, width) = (sounder.step(), self.config.transmit_width());
        let sent = &self.swept[sounder.transmitted() * width..][..width];
        let [re, im] = channels.map_or([0.0; 2], |channels| channels.at(row, t).measure(sounder.beam(), sent));
        [re + noise[2 * t], im + noise[2 * t + 1]]
    }

    /// What both ends make of the last measurement.
    fn decide(&self, networks: &mut Networks, sounders: &[Sounder], episodes: &mut [Episode]) -> Found<()> {
        let Networks { rows, user, decision, base } = networks;
        for (row, sounder) in sounders.iter().enumerate() {
            decision.runner.floats_mut("measurements", row)?.copy_from_slice(sounder.measurements());
            decision.runner.floats_mut("state", row)?.copy_from_slice(user.runner.floats("state", row)?);
            if self.config.pursuit().is_some() {
                decision.runner.floats_mut("snr", row)?[0] = sounder.snr();
            }
        }
        decision.step(&vec![true; *rows])?;
        for (row, episode) in episodes.iter_mut().enumerate() {
            let said = decision.runner.floats("feedback", row)?;
            let (index, receive) = self.config.keep(decision.runner.floats("beam", row)?, said)?;
            (episode.index, episode.receive) = (index.map(|i| i as u32), receive);
        }
        let feedback = (0..*rows).map(|row| decision.runner.floats("feedback", row).map(<[f32]>::to_vec)).collect::<Found<Vec<_>>>()?;
        let Some(base) = base else {
            let width = self.config.transmit_width();
            for episode in episodes {
                let index = episode.index.map_or(0, |i| i as usize);
                episode.transmit = self.swept[index * width..][..width].to_vec();
            }
            return Ok(());
        };
        let arrived = self.config.feedback.send(&Tensor::new(feedback, &Device::Cpu)?)?;
        base.runner.set_f32("feedback", &arrived.flatten_all()?.to_vec1::<f32>()?)?;
        base.step(&vec![true; *rows])?;
        for (row, (sounder, episode)) in sounders.iter().zip(episodes).enumerate() {
            episode.transmit = base.runner.floats("beam", row)?.to_vec();
            sounder.transmit(&mut episode.transmit)?;
        }
        Ok(())
    }
}

impl Reader for Links {
    fn run(&mut self, source: &Source, output: &mut Output) -> Result<()> {
        match source {
            Source::Drawn => self.draw(output),
            Source::Tensors(path, tensors) => self.file(path, tensors, output),
            Source::File(path) => bail!("{}: expected named tensors (.safetensors)", path.display()),
        }
    }

    fn summary(&self, _: &str, place: &str) -> Result<()> {
        if let Some((_, number)) = self.picture {
            bail!("--episode: {number} of {} episodes, which are counted from 0", self.episodes);
        }
        if let Ok(found) = Summary::new(&self.gains, 0.0) {
            let (mean, error, of_mean) = (found.mean_db, found.error_db, found.db_of_mean);
            let satisfied = 100.0 * self.satisfied as f64 / found.count as f64;
            line(format_args!(
                "gain {mean:.2} +- {error:.2} dB (mean of dB with its standard error over {} channels; dB of the mean {of_mean:.2}); satisfied (gain + SNR of {SATISFIED_DB} dB or more): {satisfied:.1}%",
                found.count
            ))?;
        }
        if self.episodes > 0 {
            let each = self.time.as_secs_f64() * 1e6 / self.episodes as f64;
            line(format_args!(
                "time per episode: {each:.1} us (up to {ROWS} sweeps side by side, measuring simulated ones included; {place})"
            ))?;
            if self.posterior.is_some() {
                let each = self.decisions.as_secs_f64() * 1e3 / self.episodes as f64;
                line(format_args!("of it the decision by the posterior: {each:.2} ms of one core"))?;
            }
        }
        Ok(())
    }

    fn frames(&self) -> u64 {
        self.measurements
    }
}
