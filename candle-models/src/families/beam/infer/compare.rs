//! How far an exported controller is from its original.

use super::Options;
use super::links::{Links, Passes};
use super::passes::sequences;
use crate::Result;
use crate::engine::Placement;
use crate::infer::{Comparison, Difference, Measure, Opened, Rehearsal};

/// The links that both are run on.
const LINKS: usize = 256;

/// Both controllers on the same simulated links, and the exported networks on what the original's read there, for the gain says
/// little about a controller that has learned little. Random features would be unlike any measurement: there are many times more of
/// them, and a memory that they saturate multiplies every rounding.
pub struct OnLinks {
    /// What the original's networks read and gave.
    passes: Passes,
    /// The original's mean gain in dB, and as a share of the channel's power.
    gain: [f64; 2],
}

impl OnLinks {
    pub fn new(original: &Opened) -> Result<Self> {
        let (gain, passes) = links(original)?.rehearse(LINKS)?;
        Ok(Self { passes, gain })
    }

    /// What the original's networks read there.
    pub fn rehearsal(&self) -> Result<Rehearsal> {
        let sequences = self.passes.iter().map(|(_, passes)| sequences(passes)).collect::<Result<_>>()?;
        Ok(Rehearsal { over: self.over(), measure: self.measure(), sequences })
    }
}

fn links(opened: &Opened) -> Result<Links> {
    Links::new(opened, &Options::default(), &Placement::cpu(1), None)
}

impl Comparison for OnLinks {
    fn over(&self) -> String {
        format!("{LINKS} simulated links")
    }

    /// The norm of an antenna with next to no signal makes much of a rounding: with the shipped controller in 8 bits one number of the
    /// state is off by 0.66 of its range, and the root mean square by 0.01.
    fn measure(&self) -> Measure {
        Measure::RootMeanSquare
    }

    fn differences(&mut self, exported: &Opened) -> Result<Vec<Difference>> {
        let mut exported = links(exported)?;
        let ([is, other], _) = exported.rehearse(LINKS)?;
        let mut differences = Vec::new();
        for ((whose, passes), (_, again)) in self.passes.iter().zip(exported.repeat(LINKS, &self.passes)?) {
            let names = passes.iter().take(1).flat_map(|pass| &pass.outputs).map(|(name, _)| format!("{whose} {name}"));
            let mut found: Vec<_> = names.map(|name| Difference::new(name, Measure::RootMeanSquare)).collect();
            for (a, b) in passes.iter().zip(&again) {
                for (found, ((_, a), (_, b))) in found.iter_mut().zip(a.outputs.iter().zip(&b.outputs)) {
                    found.add(a, b);
                }
            }
            differences.append(&mut found);
        }
        let [was, share] = self.gain;
        let name = format!("the mean gain ({is:.2} dB, was {was:.2}) as a share of the channel's power");
        let mut gain = Difference::new(name, Measure::Largest);
        gain.add(&[share as f32], &[other as f32]);
        differences.push(gain);
        Ok(differences)
    }
}
