//! Classic control: the physics of Gymnasium, and its seeds, bit for bit.

mod cartpole;

pub use cartpole::CartPole;
