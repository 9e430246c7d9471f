//! Which rank this process is, as its launcher has written it into the environment.
//!
//! | launcher | variables |
//! |---|---|
//! | torchrun, Kubernetes, `candle-train launch` | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` |
//! | Open MPI's mpirun | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`, `OMPI_COMM_WORLD_LOCAL_RANK` |
//! | MPICH's and Intel's mpirun | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` |
//! | SLURM's srun | `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`, `SLURM_NODELIST` |
//!
//! Where several are set, the upper one counts: torchrun and mpirun are started inside of SLURM's jobs.

use candle_models::{Error, Result};
use std::fmt;

/// What started this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// torchrun, `candle-train launch`, or a Kubernetes manifest.
    Torchrun,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` of MPICH and its relatives.
    Pmi,
    /// `srun`.
    Slurm,
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun's variables (RANK, WORLD_SIZE)",
            Self::OpenMpi => "mpirun",
            Self::Pmi => "mpirun (PMI)",
            Self::Slurm => "SLURM",
        })
    }
}

/// This process among those of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launched {
    /// What started it.
    pub launcher: Launcher,
    /// From 0.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
    /// Rank among those on this machine: the number of its GPU.
    pub local_rank: usize,
    /// Where rank 0 listens.
    pub master: Option<Master>,
}

/// Where rank 0 is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Master {
    /// Name or address.
    pub host: String,
    /// `MASTER_PORT`, which torchrun's own store may use.
    pub port: u16,
}

/// This process's place, from its environment; none where no launcher has set one.
///
/// # Errors
/// As those of [`read`].
pub fn from_environment() -> Result<Option<Launched>> {
    read(&|name| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
}

/// This process's place, from variables by name.
///
/// # Errors
/// A set of variables that is incomplete, is no set of numbers, or contradicts another; the message names the variable.
pub fn read(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<Launched>> {
    let variables = Variables { lookup };
    let slurm = variables.slurm()?;
    let pmi = variables.set(Launcher::Pmi, "PMI_RANK", &["PMI_SIZE"], "MPI_LOCALRANKID")?;
    let open_mpi = variables.set(Launcher::OpenMpi, "OMPI_COMM_WORLD_RANK", &["OMPI_COMM_WORLD_SIZE"], "OMPI_COMM_WORLD_LOCAL_RANK")?;
    let others = [&open_mpi, &pmi, &slurm].into_iter().any(Option::is_some);
    // Scripts export WORLD_SIZE and leave the rank to the launcher.
    let torch = if others && lookup("RANK").is_none() { None } else { variables.torch()? };

    if let Some(mpi) = open_mpi.as_ref().or(pmi.as_ref()) {
        let name =
            if mpi.launcher == Launcher::OpenMpi { ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"] } else { ["PMI_RANK", "PMI_SIZE"] };
        variables.agrees(mpi, name, "RANK", "WORLD_SIZE")?;
        if mpi.launcher == Launcher::OpenMpi {
            variables.agrees(mpi, name, "PMI_RANK", "PMI_SIZE")?;
        }
    }
    if let Some(slurm) = &slurm {
        let name = ["SLURM_PROCID", "SLURM_NTASKS"];
        if open_mpi.is_none() && pmi.as_ref().is_some_and(|pmi| pmi.size == slurm.size) {
            variables.agrees(slurm, name, "PMI_RANK", "PMI_SIZE")?;
        }
        // torchrun counts its own ranks, and srun starts one torchrun a machine. Otherwise RANK=0, exported once for all tasks of
        // a job, would make a job of rank 0s.
        let torchrun = lookup("TORCHELASTIC_RUN_ID").is_some() || torch.as_ref().is_some_and(|t| t.size != slurm.size);
        if open_mpi.is_none() && !torchrun {
            variables.agrees(slurm, name, "RANK", "WORLD_SIZE")?;
        }
    }
    let mut found = torch.or(open_mpi).or(pmi).or(slurm);
    if let Some(launched) = &mut found {
        launched.master = variables.master(launched)?;
    }
    Ok(found)
}

struct Variables<'a> {
    lookup: &'a dyn Fn(&str) -> Option<String>,
}

fn wrong(name: &str, expected: &str, found: &dyn fmt::Display) -> Error {
    Error::Input(format!("environment: {name}: expected {expected}, found {found}"))
}

impl Variables<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name)
    }

    fn number(&self, name: &str) -> Result<Option<usize>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let number = value.parse().map_err(|_| wrong(name, "a number", &format!("{value:?}")))?;
        Ok(Some(number))
    }

    /// The set of a launcher that names `rank`.
    fn set(&self, launcher: Launcher, rank: &str, sizes: &[&str], local: &str) -> Result<Option<Launched>> {
        let mut size = None;
        for name in sizes {
            if size.is_none() {
                size = self.number(name)?.map(|n| (*name, n));
            }
        }
        let (found, local_rank) = (self.number(rank)?, self.number(local)?);
        let missing = |name: &str, other: &str| Error::Input(format!("environment: {other} is set, but not {name}"));
        let (number, (size_name, size)) = match (found, size) {
            (None, None) => return local_rank.map_or(Ok(None), |_| Err(missing(rank, local))),
            (Some(_), None) => return Err(missing(sizes[0], rank)),
            (None, Some((name, _))) => return Err(missing(rank, name)),
            (Some(rank), Some(size)) => (rank, size),
        };
        if number >= size {
            return Err(wrong(rank, &format!("less than {size_name}={size}"), &number));
        }
        // One process a machine needs none.
        let local_rank = local_rank.unwrap_or(0);
        if local_rank >= size {
            return Err(wrong(local, &format!("less than {size_name}={size}"), &local_rank));
        }
        Ok(Some(Launched { launcher, rank: number, size, local_rank, master: None }))
    }

    fn torch(&self) -> Result<Option<Launched>> {
        self.set(Launcher::Torchrun, "RANK", &["WORLD_SIZE"], "LOCAL_RANK")
    }

    fn slurm(&self) -> Result<Option<Launched>> {
        let sizes = ["SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"];
        let sized = sizes.iter().any(|name| self.get(name).is_some());
        match self.number("SLURM_PROCID")? {
            // A shell inside of an allocation.
            None => Ok(None),
            // A batch script is process 0, and without --ntasks nobody says of how many.
            Some(0) if !sized => Ok(None),
            Some(_) if !sized => Err(Error::Input("environment: SLURM_PROCID is set, but not SLURM_NTASKS".into())),
            Some(_) => self.set(Launcher::Slurm, "SLURM_PROCID", &sizes, "SLURM_LOCALID"),
        }
    }

    /// Checks `rank` and `size`, where they are set, against `launched`, which `names` said.
    fn agrees(&self, launched: &Launched, names: [&str; 2], rank: &str, size: &str) -> Result<()> {
        for (name, by, number) in [(rank, names[0], launched.rank), (size, names[1], launched.size)] {
            if let Some(found) = self.number(name)?.filter(|found| *found != number) {
                return Err(wrong(name, &format!("{number} as {by} says"), &found));
            }
        }
        Ok(())
    }

    fn master(&self, launched: &Launched) -> Result<Option<Master>> {
        let port = self.number("MASTER_PORT")?;
        let port = port.map(|p| u16::try_from(p).ok().filter(|p| (1..u16::MAX).contains(p)).ok_or((p, "a port from 1 to 65534")));
        let port = port.transpose().map_err(|(found, expected)| wrong("MASTER_PORT", expected, &found))?;
        let slurm = launched.launcher == Launcher::Slurm;
        let host = match self.get("MASTER_ADDR") {
            Some(host) if host.is_empty() => return Err(wrong("MASTER_ADDR", "a host", &"nothing")),
            None if slurm => self.first_node()?,
            host => host,
        };
        let port = port.or(if slurm { Some(self.slurm_port()?) } else { None });
        let needed = launched.launcher == Launcher::Torchrun && launched.size > 1;
        match (host, port) {
            (Some(host), Some(port)) => Ok(Some(Master { host, port })),
            (Some(_), None) => Err(Error::Input("environment: MASTER_ADDR is set, but not MASTER_PORT".into())),
            (None, Some(_)) if !slurm => Err(Error::Input("environment: MASTER_PORT is set, but not MASTER_ADDR".into())),
            _ if needed => Err(Error::Input("environment: WORLD_SIZE is set, but neither MASTER_ADDR nor MASTER_PORT".into())),
            _ => Ok(None),
        }
    }

    fn first_node(&self) -> Result<Option<String>> {
        for name in ["SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"] {
            if let Some(list) = self.get(name) {
                return first_host(&list).map(Some).ok_or_else(|| wrong(name, "hosts as in node[01-03,7],gpu5", &format!("{list:?}")));
            }
        }
        Ok(None)
    }

    /// A port for each job, so that two of them on one machine do not meet.
    fn slurm_port(&self) -> Result<u16> {
        let job = self.number("SLURM_JOB_ID")?.unwrap_or(0) % 10_000;
        Ok(20_000 + 2 * u16::try_from(job).unwrap_or(0))
    }
}

/// The first host of SLURM's short form: `node[01-03,7],gpu5` begins with `node01`.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some(c) = rest.chars().next() {
        match c {
            ',' => break,
            '[' => {
                let (inside, after) = rest[1..].split_once(']')?;
                let number = inside.split([',', '-']).next()?;
                let well_formed = inside.split([',', '-']).all(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
                host.push_str(Some(number).filter(|_| well_formed)?);
                rest = after;
            }
            c if c.is_ascii_alphanumeric() || "-._".contains(c) => {
                host.push(c);
                rest = &rest[1..];
            }
            _ => return None,
        }
    }
    Some(host).filter(|host| !host.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_from(variables: &str) -> std::result::Result<Option<Launched>, String> {
        let pairs: Vec<_> = variables.split_whitespace().map(|pair| pair.split_once('=').unwrap()).collect();
        read(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned())).map_err(|e| e.to_string())
    }

    const MASTER: &str = "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500";

    #[test]
    fn every_launcher_is_understood() {
        let slurm = "SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_LOCALID=1 SLURM_JOB_ID=12345";
        for (variables, expected) in [
            ("", None),
            (&*format!("RANK=2 WORLD_SIZE=4 LOCAL_RANK=1 {MASTER}"), Some((Launcher::Torchrun, 2, 4, 1, "10.0.0.1:29500"))),
            (&format!("RANK=2 WORLD_SIZE=4 {MASTER}"), Some((Launcher::Torchrun, 2, 4, 0, "10.0.0.1:29500"))),
            ("RANK=0 WORLD_SIZE=1", Some((Launcher::Torchrun, 0, 1, 0, ""))),
            ("OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1", Some((Launcher::OpenMpi, 3, 4, 1, ""))),
            ("PMI_RANK=0 PMI_SIZE=2 MPI_LOCALRANKID=0", Some((Launcher::Pmi, 0, 2, 0, ""))),
            (
                &format!("{slurm} SLURM_STEP_NODELIST=gpu[03-05,9] SLURM_NODELIST=gpu[01-09]"),
                Some((Launcher::Slurm, 2, 4, 1, "gpu03:24690")),
            ),
            (&format!("{slurm} {MASTER}"), Some((Launcher::Slurm, 2, 4, 1, "10.0.0.1:29500"))),
            (slurm, Some((Launcher::Slurm, 2, 4, 1, ""))),
            // A batch script, and a shell in an allocation.
            ("SLURM_PROCID=0 SLURM_LOCALID=0", None),
            ("SLURM_NTASKS=4", None),
            // A step of two tasks in an allocation for eight.
            ("SLURM_PROCID=1 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=1", Some((Launcher::Slurm, 1, 2, 1, ""))),
        ] {
            let found = read_from(variables).unwrap();
            let found = found.as_ref().map(|l| {
                let master = l.master.as_ref().map(|m| format!("{}:{}", m.host, m.port)).unwrap_or_default();
                (l.launcher, l.rank, l.size, l.local_rank, master)
            });
            assert_eq!(found, expected.map(|(a, b, c, d, master)| (a, b, c, d, master.to_owned())), "{variables}");
        }
    }

    #[test]
    fn launchers_within_launchers() {
        let slurm = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=0 SLURM_NODELIST=a,b";
        // torchrun on each of two machines, mpirun in a batch script, srun with PMI, a script that exports the size.
        for (variables, launcher, rank) in [
            (format!("{slurm} RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 {MASTER}"), Launcher::Torchrun, 9),
            (format!("{slurm} RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 TORCHELASTIC_RUN_ID=x {MASTER}"), Launcher::Torchrun, 0),
            (format!("{slurm} RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 {MASTER}"), Launcher::Torchrun, 1),
            (format!("{slurm} OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2"), Launcher::OpenMpi, 0),
            (format!("{slurm} PMI_RANK=1 PMI_SIZE=2"), Launcher::Pmi, 1),
            (format!("{slurm} WORLD_SIZE=2"), Launcher::Slurm, 1),
        ] {
            let found = read_from(&variables).unwrap().unwrap();
            assert_eq!((found.launcher, found.rank), (launcher, rank), "{variables}");
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let slurm = "SLURM_PROCID=1 SLURM_NTASKS=2 SLURM_LOCALID=1";
        let open_mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2";
        for (variables, message) in [
            ("RANK=0", "RANK is set, but not WORLD_SIZE"),
            ("WORLD_SIZE=2", "WORLD_SIZE is set, but not RANK"),
            ("LOCAL_RANK=0", "LOCAL_RANK is set, but not RANK"),
            ("RANK=two WORLD_SIZE=4", "RANK: expected a number, found \"two\""),
            ("RANK=-1 WORLD_SIZE=4", "RANK: expected a number, found \"-1\""),
            ("RANK= WORLD_SIZE=4", "RANK: expected a number, found \"\""),
            ("RANK=4 WORLD_SIZE=4", "RANK: expected less than WORLD_SIZE=4, found 4"),
            ("RANK=0 WORLD_SIZE=0", "RANK: expected less than WORLD_SIZE=0"),
            ("RANK=1 WORLD_SIZE=2 LOCAL_RANK=2", "LOCAL_RANK: expected less than WORLD_SIZE=2, found 2"),
            ("RANK=1 WORLD_SIZE=2", "neither MASTER_ADDR nor MASTER_PORT"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a", "MASTER_ADDR is set, but not MASTER_PORT"),
            ("RANK=1 WORLD_SIZE=2 MASTER_PORT=29500", "MASTER_PORT is set, but not MASTER_ADDR"),
            ("RANK=1 WORLD_SIZE=2 MASTER_ADDR=a MASTER_PORT=65535", "MASTER_PORT: expected a port from 1 to 65534, found 65535"),
            ("OMPI_COMM_WORLD_RANK=1", "OMPI_COMM_WORLD_RANK is set, but not OMPI_COMM_WORLD_SIZE"),
            ("PMI_SIZE=2", "PMI_SIZE is set, but not PMI_RANK"),
            ("SLURM_PROCID=3", "SLURM_PROCID is set, but not SLURM_NTASKS"),
            (&*format!("{slurm} SLURM_NODELIST=a[1-"), "SLURM_NODELIST: expected hosts as in node[01-03,7],gpu5, found \"a[1-\""),
            (&format!("{open_mpi} RANK=0"), "RANK is set, but not WORLD_SIZE"),
            (&format!("{open_mpi} RANK=0 WORLD_SIZE=2 {MASTER}"), "RANK: expected 1 as OMPI_COMM_WORLD_RANK says, found 0"),
            (&format!("{open_mpi} WORLD_SIZE=8"), "WORLD_SIZE: expected 2 as OMPI_COMM_WORLD_SIZE says, found 8"),
            (&format!("{open_mpi} PMI_RANK=0 PMI_SIZE=2"), "PMI_RANK: expected 1 as OMPI_COMM_WORLD_RANK says, found 0"),
            (&format!("{slurm} RANK=0 WORLD_SIZE=2 {MASTER}"), "RANK: expected 1 as SLURM_PROCID says, found 0"),
            (&format!("{slurm} PMI_RANK=0 PMI_SIZE=2"), "PMI_RANK: expected 1 as SLURM_PROCID says, found 0"),
        ] {
            let error = read_from(variables).unwrap_err();
            assert!(error.contains(message), "{variables}: {error}");
        }
    }

    #[test]
    fn slurm_lists_begin_with_their_first_host() {
        for (list, host) in [
            ("node7", "node7"),
            ("node[01-03,7]", "node01"),
            ("node[7,01-03],gpu5", "node7"),
            ("gpu5,node[01-03]", "gpu5"),
            ("rack[2-3]-n[010-020].cluster", "rack2-n010.cluster"),
        ] {
            assert_eq!(first_host(list).as_deref(), Some(host), "{list}");
        }
        for list in ["", ",", "node[", "node[]", "node[a-b]", "node[1-]", "a b", "node]1["] {
            assert_eq!(first_host(list), None, "{list}");
        }
    }
}
