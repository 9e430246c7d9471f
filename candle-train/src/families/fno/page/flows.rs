//! Flows on a periodic square: errors of an answer and of roll-outs by time, on two grids, what the equation says of answers, pictures.

use super::measure::{Model, Row, Test, coarser, errors, from_zero, mean, measures, pictures, spectra};
use super::{PRINTED, SEED};
use crate::families::fno::fields::Fields;
use crate::families::fno::loss::Norm;
use crate::families::fno::source::{Equation, Source};
use crate::families::fno::stored::Stored;
use crate::feed::values;
use crate::report::figure::Line;
use crate::report::sections::{Section, of_seeds};
use candle_models::Result;
use candle_models::fno::metrics::mean_relative_l2;
use candle_models::fno::physics::spectrum_error;

/// What is measured of operators for the equations of Navier and Stokes.
pub struct Flows {
    pub models: Vec<Model>,
    /// What is made, as the operators learnt from it.
    pub equation: Equation,
}

impl Flows {
    /// The tables and figures. `count` are how many runs are made.
    ///
    /// # Errors
    /// If a network or the solver fails.
    pub fn section(&self, count: u64, say: &dyn Fn(&str)) -> Result<Section> {
        say("flows");
        let finest = Source { seed: SEED, count, equation: self.equation.clone() }.all()?;
        let tests = [2, 1].map(|stride| Test { name: "made".to_owned(), pairs: coarser(&finest, [stride; 2]) });
        let states = finest.states;
        let mut rows = Row::operators(&self.models, &tests)?;
        rows.push(Row::baseline("persistence", &tests, |test| Ok(test.pairs.inputs.clone()))?);
        let mut section = Section {
            text: format!(
                "\n## Flows\n\nThe vorticity of a flow on a periodic square to that of a while later, by the equations of Navier and Stokes (viscosity 1e-3, a force, states 1 apart from time 0 on). {count} runs that were made, of {states} pairs each, read at every \
                 second place and at all. Persistence says that nothing changes.\n"
            ),
            ..Section::default()
        };
        section.text += &errors(&tests, &rows, &[Norm::L2, Norm::H1Periodic]);
        section.text += &format!("\n{PRINTED}\n");

        say("flows, rolled out");
        let mut rolled = Row::operators_by(&self.models, &tests, |seed, test| roll_out(seed, &test.pairs))?;
        rolled.push(Row::baseline("persistence", &tests, |test| Ok(unmoved(&test.pairs)))?);
        section.text += &format!(
            "\n### Rolled out\n\nEvery answer is read again, {states} times. Errors of states (L2) after so many answers, and of all values of a run. The mean of the vorticity is 0: the greatest \
             there is, over the root of the mean square. Energy by wave number of the last states (of the vorticity, `1/2 sum |w_k|^2`): the greatest difference from the truth's for k from 1 to half \
             of those that an operator computes with.\n"
        );
        let times = [1, states.div_ceil(4), states.div_ceil(2), states];
        let heads: Vec<String> = times.iter().map(|time| format!("after {time}")).collect();
        let mut heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        heads.extend(["whole", "mean", "energy off by, %"]);
        let most = self.models.iter().map(Model::most).max().unwrap_or(0).div_ceil(2);
        section.text += &measures(&tests, &rolled, &heads, |(number, test), row| {
            let (truth, grid) = (&test.pairs.answers, test.pairs.grid);
            let last = spectra(&state(&test.pairs, truth, states - 1), grid)?;
            let mut cells = vec![Vec::new(); heads.len()];
            for answers in &row.answers[number] {
                let mut found: Vec<f64> = times.iter().map(|time| error_at(&test.pairs, answers, time - 1)).collect();
                found.push(run_errors(&test.pairs, answers));
                found.push(greatest_mean(&test.pairs, answers));
                found.push(100.0 * spectrum_error(&spectra(&state(&test.pairs, answers, states - 1), grid)?, &last, most));
                cells.iter_mut().zip(found).for_each(|(cell, found)| cell.push(found));
            }
            Ok(cells.iter().zip(&heads).map(|(cell, head)| of_seeds(cell, if head.starts_with("energy") { 2 } else { 4 })).collect())
        })?;
        section.show("flows-times.svg".to_owned(), ("Error of roll-outs by time.", PRINTED), by_time(&tests, &rolled)?);
        let first = &tests[0].pairs;
        let end = Fields { states: 1, inputs: beginnings(first), answers: state(first, &first.answers, states - 1), ..*first };
        let said = state(first, &rolled[0].answers[0][0], states - 1);
        let says = format!(
            "{}: the vorticity at the beginning, {states} answers later, what the first seed has come to, and its error. Below them: the values of the first and the last colour.",
            tests[0].grid()
        );
        section.show("flows.svg".to_owned(), (&says, PRINTED), pictures(&Test { name: "made".to_owned(), pairs: end }, &said, true));
        Ok(section)
    }
}

/// The first states of all runs, `[N, n, m]`.
fn beginnings(pairs: &Fields) -> Vec<f32> {
    (0..pairs.runs()).flat_map(|run| pairs.pair(run * pairs.states)[0]).copied().collect()
}

/// What every run's states are if nothing changes, `[N, T, n, m]`.
fn unmoved(pairs: &Fields) -> Vec<f32> {
    (0..pairs.runs()).flat_map(|run| pairs.pair(run * pairs.states)[0].repeat(pairs.states)).collect()
}

/// What an operator comes to from the beginnings, `[N, T, n, m]`.
fn roll_out(operator: &Stored, pairs: &Fields) -> Result<Vec<f32>> {
    let (width, states) = (pairs.widths()[1], pairs.states);
    let mut all = vec![0.0; pairs.answers.len()];
    let mut now = Fields { states: 1, inputs: beginnings(pairs), answers: Vec::new(), ..*pairs };
    for time in 0..states {
        now.inputs = values(&operator.answers(&now)?, "y")?;
        for (run, field) in now.inputs.chunks_exact(width).enumerate() {
            all[(run * states + time) * width..][..width].copy_from_slice(field);
        }
    }
    Ok(all)
}

/// State `time` of every run of `[N, T, n, m]`.
fn state(pairs: &Fields, fields: &[f32], time: usize) -> Vec<f32> {
    fields.chunks_exact(pairs.widths()[1]).skip(time).step_by(pairs.states).flatten().copied().collect()
}

/// The mean error of state `time`.
fn error_at(pairs: &Fields, answers: &[f32], time: usize) -> f64 {
    mean_relative_l2(&state(pairs, answers, time), &state(pairs, &pairs.answers, time), pairs.widths()[1])
}

/// The mean error of all values of a run.
fn run_errors(pairs: &Fields, answers: &[f32]) -> f64 {
    mean_relative_l2(answers, &pairs.answers, pairs.states * pairs.widths()[1])
}

/// The greatest mean of a field over the root of its mean square.
fn greatest_mean(pairs: &Fields, answers: &[f32]) -> f64 {
    let of = |field: &[f32]| {
        let values: Vec<f64> = field.iter().map(|x| f64::from(*x)).collect();
        mean(&values).abs() / mean(&values.iter().map(|x| x * x).collect::<Vec<_>>()).sqrt()
    };
    answers.chunks_exact(pairs.widths()[1]).map(of).fold(0.0, f64::max)
}

/// Errors of the states after every answer.
fn by_time(tests: &[Test], rows: &[Row]) -> Result<String> {
    let mut lines = Vec::new();
    for (number, test) in tests.iter().enumerate() {
        for row in rows {
            let at = |time: usize| {
                let errors: Vec<f64> = row.answers[number].iter().map(|answers| error_at(&test.pairs, answers, time)).collect();
                ((time + 1) as f64, mean(&errors))
            };
            let points = (0..test.pairs.states).map(at).collect();
            lines.push(Line { name: format!("{}, {}", row.short, test.grid()), dashed: !row.learnt, points });
        }
    }
    from_zero((0.0..tests[0].pairs.states as f64, "answers"), "mean relative error (L2)", &lines)
}
