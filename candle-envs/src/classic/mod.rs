//! Classic control: the physics of Gymnasium, and its seeds, bit for bit.

mod acrobot;
mod cartpole;
mod mountain_car;
mod pendulum;

pub use acrobot::Acrobot;
pub use cartpole::CartPole;
pub use mountain_car::MountainCar;
pub use pendulum::Pendulum;
