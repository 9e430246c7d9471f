//! What the environment sets.

/// The emulated machine; see `README.md` for the variables.
#[derive(Clone, Debug)]
pub struct Config {
    pub devices: i32,
    pub capability: (i32, i32),
    pub driver_version: i32,
    /// Bytes per device.
    pub memory: usize,
    /// The allocation that fails, counted from 1.
    pub fail_alloc: Option<u64>,
    pub seed: u64,
    pub races: bool,
    pub log: bool,
    pub max_instructions: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            devices: 1,
            capability: (9, 0),
            driver_version: 13000,
            memory: 2 << 30,
            fail_alloc: None,
            seed: 1,
            races: true,
            log: false,
            max_instructions: 20_000_000_000,
        }
    }
}

impl Config {
    pub fn from_env() -> Self {
        let base = Self::default();
        let capability = std::env::var("CUDA_EMULATOR_CAPABILITY").ok().and_then(|v| {
            let (major, minor) = v.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        });
        Self {
            devices: number("DEVICES").unwrap_or(base.devices as u64) as i32,
            capability: capability.unwrap_or(base.capability),
            driver_version: number("DRIVER_VERSION").unwrap_or(base.driver_version as u64) as i32,
            memory: number("MEMORY").unwrap_or(base.memory as u64) as usize,
            fail_alloc: number("FAIL_ALLOC"),
            seed: number("SEED").unwrap_or(base.seed),
            races: number("RACES") != Some(0),
            log: number("LOG").is_some_and(|v| v != 0),
            max_instructions: number("MAX_INSTRUCTIONS").unwrap_or(base.max_instructions),
        }
    }
}

fn number(name: &str) -> Option<u64> {
    let name = format!("CUDA_EMULATOR_{name}");
    let value = std::env::var(&name).ok()?;
    let parsed = value.parse().ok();
    if parsed.is_none() {
        crate::log::error(&format!("{name}={value} is not a number"));
    }
    parsed
}
