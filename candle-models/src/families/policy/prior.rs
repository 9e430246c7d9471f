//! What the logits of a policy begin with: count tables of the training games.
//!
//! People repeat themselves. What they press after two given actions is much alike from person to person, and a table of counts has it from few
//! games; what a network makes of the whole game differs more between people than between games of one person. So with
//! [`PolicyConfig::prior`](super::PolicyConfig::prior) each component's logits are the logarithm of
//!
//! `P(class | context) = (n(context, class) + 0.1) / (n(context) + 0.1 * classes)`
//!
//! plus what the network adds, and the network learns only what the table does not know. A context is the component's own class in the last two
//! frames, for the y axis of a stick also the x axis of this frame, and for the shoulder the shoulder buttons of this frame. At a game's first frame the
//! action before the last counts as the last.
//!
//! These are marginals of the table [`CONDITIONED`](super::baselines::CONDITIONED), which every training run has counted, and are made of it.
//!
//! ```
//! use candle_models::policy::actions::Action;
//! use candle_models::policy::baselines::Baselines;
//! use candle_models::policy::prior;
//!
//! let game = vec![Action::default(); 100]; // nobody touches anything
//! let tables = prior::of(&Baselines::fit([&game]))?;
//! let (name, table) = &tables[0];
//! assert_eq!((name.as_str(), table.dims()), ("heads.buttons.prior", &[8 * 4, 8][..]));
//! # Ok::<(), candle_models::Error>(())
//! ```

use super::actions::{ACTION, COMPONENTS, GROUPS, group};
use super::baselines::{Baselines, SMOOTHING};
use super::heads::{GIVEN, KEYS, choice};
use crate::{Error, Result};
use candle_core::{Device, Tensor};

/// The tables of the games that were counted, by the names of the parameters that hold them.
///
/// # Errors
/// If there is no memory for a table.
pub fn of(baselines: &Baselines) -> Result<Vec<(String, Tensor)>> {
    let mut counts: [Vec<f32>; ACTION] = std::array::from_fn(|i| vec![0.0; contexts(i) * classes(i)]);
    for counted in baselines.conditioned() {
        let i = counted.component;
        let known = [(i, 1), (i, 2)].into_iter().chain(GIVEN[group(i)].iter().map(|column| (*column, 0)));
        let mut context = known.map(|(column, back)| Some((column, counted.known(column, back)?)));
        let context = context.try_fold(0, |number, digit| digit.map(|(column, class)| number * classes(column) + class));
        let context = context.ok_or_else(|| Error::Input(format!("count tables without the context of {}", COMPONENTS[i].name)))?;
        counts[i][context * classes(i) + counted.class] += counted.count as f32;
    }
    (0..GROUPS).map(|g| Ok((format!("heads.{}.prior", KEYS[g]), table(g, &counts)?))).collect()
}

fn classes(i: usize) -> usize {
    usize::from(COMPONENTS[i].classes)
}

fn contexts(i: usize) -> usize {
    classes(i) * classes(i) * GIVEN[group(i)].iter().map(|j| classes(*j)).product::<usize>()
}

/// `[columns * contexts, logits]`: a row of a column leaves the logits of the other columns alone.
fn table(g: usize, counts: &[Vec<f32>; ACTION]) -> Result<Tensor> {
    let (of, width) = (choice(g), choice(g).logits());
    let mut values = Vec::new();
    for i in 0..of.columns {
        for row in counts[of.column + i].chunks(of.classes) {
            let at = values.len();
            values.resize(at + width, 0.0);
            let all = row.iter().sum::<f32>() + SMOOTHING * of.classes as f32;
            match row {
                [down, up] => values[at + i] = ((up + SMOOTHING) / (down + SMOOTHING)).ln(),
                _ => values[at + i * of.classes..].iter_mut().zip(row).for_each(|(logit, n)| *logit = ((n + SMOOTHING) / all).ln()),
            }
        }
    }
    Ok(Tensor::from_vec(values, (of.columns * contexts(of.column), width), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::actions::{Action, LOGITS, nll};
    use crate::families::policy::baselines::CONDITIONED;
    use crate::families::policy::simulation::simulate;

    /// The logits of one frame by the tables alone.
    fn logits(tables: &[(String, Tensor)], now: &Action, last: &Action, before: &Action) -> [f32; LOGITS] {
        let (mut logits, mut start) = ([0.0; LOGITS], 0);
        let [now, last, before] = [now, last, before].map(|action| action.classes().map(usize::from));
        for (g, (_, table)) in tables.iter().enumerate() {
            let rows = table.to_vec2::<f32>().unwrap();
            for i in 0..choice(g).columns {
                let column = choice(g).column + i;
                let own = last[column] * classes(column) + before[column];
                let context = GIVEN[group(column)].iter().fold(own, |number, &j| number * classes(j) + now[j]);
                let row = &rows[i * contexts(column) + context];
                logits[start..start + row.len()].iter_mut().zip(row).for_each(|(logit, x)| *logit += x);
            }
            start += choice(g).logits();
        }
        logits
    }

    #[test]
    fn tables_say_what_the_counts_say() {
        let game = simulate(3, 900);
        let sequence: Vec<Action> = game.frames.iter().map(|frame| Action::from_controller(&frame.players[0].controller)).collect();
        let counted = Baselines::fit([&sequence]);
        let tables = of(&counted).unwrap();
        let mut seen = 0;
        for t in 2..sequence.len() {
            let [now, last, before] = [t, t - 1, t - 2].map(|t| &sequence[t]);
            let found = nll(&logits(&tables, now, last, before), now);
            let expected = counted.score([last, before], now)[CONDITIONED].nll;
            // Buttons and the shoulder have the same contexts in both tables.
            for g in [0, GROUPS - 1] {
                assert!((found[g] - expected[g]).abs() < 1e-4, "frame {t}: {} nats of {}, counted {}", found[g], KEYS[g], expected[g]);
            }
            seen += usize::from(now != last);
        }
        assert!(seen > 20, "a game in which something is pressed");
        // Every row of an axis is a distribution.
        for (name, table) in &tables[1..] {
            let sums = table.exp().unwrap().sum(1).unwrap().to_vec1::<f32>().unwrap();
            assert!(sums.iter().all(|sum| (sum - 1.0).abs() < 1e-4), "{name}");
        }
    }
}
