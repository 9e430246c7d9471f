//! Examples: see the `examples` folder beside this crate.

/// Runs the programs of the guide.
#[cfg(doctest)]
mod guide {
    #[doc = include_str!("../../docs/src/deployment.md")]
    struct Deployment;
    #[doc = include_str!("../../docs/src/first_agent.md")]
    struct FirstAgent;
    #[doc = include_str!("../../docs/src/own_agent.md")]
    struct OwnAgent;
    #[doc = include_str!("../../docs/src/training.md")]
    struct Training;
}
