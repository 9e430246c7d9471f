//! This machine, as the system describes it. What it does not say is `unknown`.

use std::fmt;

/// Name, CPU model, and the CPUs that this process may use.
///
/// ```
/// use candle_train::host::Host;
///
/// let host = Host::detect();
/// assert!(host.cpus >= 1 && host.to_string().ends_with("processors"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Name of the machine.
    pub name: String,
    /// CPU model.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cpus: usize,
}

impl Host {
    /// Asks the system.
    pub fn detect() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        Self {
            name: first_line(&read("/proc/sys/kernel/hostname")),
            cpu: cpu_model(&read("/proc/cpuinfo")),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}, {} processors", self.name, self.cpu, self.cpus)
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn first_line(text: &str) -> String {
    text.lines().next().map_or_else(unknown, |line| line.trim().to_owned())
}

fn cpu_model(cpuinfo: &str) -> String {
    let named = |line: &str| line.strip_prefix("model name").and_then(|rest| rest.split_once(':')).map(|(_, name)| name.trim().to_owned());
    cpuinfo.lines().find_map(named).unwrap_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_of_a_cpu() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: AMD EPYC 9654\nmodel name\t: AMD EPYC 9654\n"), "AMD EPYC 9654");
        assert_eq!(cpu_model(""), "unknown");
    }

    #[test]
    fn what_the_system_does_not_say_is_unknown() {
        assert_eq!((first_line(""), first_line("bench-1\n")), ("unknown".to_owned(), "bench-1".to_owned()));
        assert!(Host::detect().cpus >= 1);
    }
}
