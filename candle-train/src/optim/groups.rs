//! Parameters that are updated alike.

/// How a parameter is updated, as factors on what the optimiser's configuration and the schedule say.
///
/// ```
/// use candle_train::optim::ParameterGroup;
///
/// assert_eq!(ParameterGroup::by_rank(2), ParameterGroup::DECAYED); // matrices
/// assert_eq!(ParameterGroup::by_rank(1), ParameterGroup::PLAIN); // biases, gains
/// assert_eq!(ParameterGroup::with_mamba("blocks.0.a_log", 2), ParameterGroup::PLAIN);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ParameterGroup {
    /// Factor on the learning rate.
    pub learning_rate: f64,
    /// Factor on the weight decay.
    pub weight_decay: f64,
}

impl ParameterGroup {
    /// With weight decay.
    pub const DECAYED: Self = Self { learning_rate: 1.0, weight_decay: 1.0 };
    /// Without weight decay.
    pub const PLAIN: Self = Self { learning_rate: 1.0, weight_decay: 0.0 };

    /// Weight decay acts on matrices and tables, not on biases, gains and other vectors.
    pub fn by_rank(rank: usize) -> Self {
        if rank >= 2 { Self::DECAYED } else { Self::PLAIN }
    }

    /// Of a network that may have Mamba blocks: [`Self::by_rank`], but for their transition matrix `a_log`, where decay would shorten the
    /// memory.
    pub fn with_mamba(name: &str, rank: usize) -> Self {
        let last = name.rsplit('.').next().unwrap_or(name);
        if last.eq_ignore_ascii_case("a_log") { Self::PLAIN } else { Self::by_rank(rank) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_spares_vectors_and_the_transition_matrix() {
        let decays = |name, rank| ParameterGroup::with_mamba(name, rank) == ParameterGroup::DECAYED;
        assert!(decays("backbone.0.in_proj.weight", 2));
        assert!(decays("backbone.0.conv.weight", 2));
        assert!(!decays("backbone.0.norm.weight", 1));
        assert!(!decays("backbone.0.d", 1));
        assert!(!decays("backbone.0.a_log", 2));
        assert!(!decays("backbone.0.A_log", 2));
        assert_eq!(ParameterGroup::by_rank(2), ParameterGroup::DECAYED, "a network of one's own may call anything a_log");
    }
}
