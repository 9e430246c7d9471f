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
//! ```
//! use candle_models::policy::actions::Action;
//! use candle_models::policy::prior;
//!
//! let game = vec![Action::default(); 100]; // nobody touches anything
//! let tables = prior::fit([&game])?;
//! let (name, table) = &tables[0];
//! assert_eq!((name.as_str(), table.dims()), ("heads.buttons.prior", &[8 * 4, 8][..]));
//! # Ok::<(), candle_models::Error>(())
//! ```

use super::actions::{ACTION, Action, COMPONENTS, GROUPS};
use super::heads::{GIVEN, KEYS, choice};
use crate::Result;
use candle_core::{Device, Tensor};

const SMOOTHING: f32 = 0.1;

/// The tables of games, one sequence of actions per game and player, by the names of the parameters that hold them.
///
/// # Errors
/// If there is no memory for a table.
pub fn fit<S: AsRef<[Action]>>(sequences: impl IntoIterator<Item = S>) -> Result<Vec<(String, Tensor)>> {
    let mut counts: [Vec<f32>; ACTION] = std::array::from_fn(|i| vec![SMOOTHING; contexts(i) * classes(i)]);
    for sequence in sequences {
        let sequence = sequence.as_ref();
        for t in 1..sequence.len() {
            let [now, last, before] = [t, t - 1, t.saturating_sub(2)].map(|t| sequence[t].classes());
            for (i, counts) in counts.iter_mut().enumerate() {
                let digits = [(i, last[i]), (i, before[i])].into_iter().chain(given(i).iter().map(|&j| (j, now[j])));
                let context = digits.fold(0, |number, (j, class)| number * classes(j) + usize::from(class));
                counts[context * classes(i) + usize::from(now[i])] += 1.0;
            }
        }
    }
    (0..GROUPS).map(|g| Ok((format!("heads.{}.prior", KEYS[g]), table(g, &counts)?))).collect()
}

fn classes(i: usize) -> usize {
    usize::from(COMPONENTS[i].classes)
}

/// The component that column `i` of an action belongs to.
fn component(i: usize) -> usize {
    (0..GROUPS).find(|g| (choice(*g).column..choice(*g).column + choice(*g).columns).contains(&i)).unwrap_or(0)
}

fn given(i: usize) -> &'static [usize] {
    GIVEN[component(i)]
}

fn contexts(i: usize) -> usize {
    classes(i) * classes(i) * given(i).iter().map(|j| classes(*j)).product::<usize>()
}

/// `[columns * contexts, logits]`: a row of a column leaves the logits of the other columns alone.
fn table(g: usize, counts: &[Vec<f32>; ACTION]) -> Result<Tensor> {
    let (of, width) = (choice(g), choice(g).logits());
    let mut values = Vec::new();
    for i in 0..of.columns {
        for row in counts[of.column + i].chunks(of.classes) {
            let at = values.len();
            values.resize(at + width, 0.0);
            let all: f32 = row.iter().sum();
            match row {
                [down, up] => values[at + i] = (up / down).ln(),
                _ => values[at + i * of.classes..].iter_mut().zip(row).for_each(|(logit, n)| *logit = (n / all).ln()),
            }
        }
    }
    Ok(Tensor::from_vec(values, (of.columns * contexts(of.column), width), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::families::policy::actions::{LOGITS, nll};
    use crate::families::policy::baselines::{Baselines, CONDITIONED};
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
                let context = given(column).iter().fold(own, |number, &j| number * classes(j) + now[j]);
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
        let (tables, counted) = (fit([&sequence]).unwrap(), Baselines::fit([&sequence]));
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
