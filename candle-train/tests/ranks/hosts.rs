//! Two hosts, as network namespaces: where the system lets this process make them.

use crate::{Rank, command, port, start};
use std::process::Command;

/// A pair of hosts joined by a cable, and gone when dropped.
struct Hosts(String);

fn ip(arguments: &str) -> bool {
    Command::new("ip").args(arguments.split_whitespace()).output().is_ok_and(|output| output.status.success())
}

impl Hosts {
    fn new() -> Option<Self> {
        let hosts = Self(format!("candle{}", std::process::id()));
        let (a, b) = (hosts.name('a'), hosts.name('b'));
        let made = ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("-n {a} link add cable type veth peer name cable netns {b}"))
            && ip(&format!("-n {a} addr add 10.77.0.1/24 dev cable"))
            && ip(&format!("-n {b} addr add 10.77.0.2/24 dev cable"))
            && [&a, &b].into_iter().all(|n| ip(&format!("-n {n} link set cable up")) && ip(&format!("-n {n} link set lo up")));
        made.then_some(hosts)
    }

    fn name(&self, host: char) -> String {
        format!("{}{host}", self.0)
    }

    fn start(&self, host: char, rank: &Command) -> Rank {
        let mut on_host = Command::new("ip");
        on_host.args(["netns", "exec", &self.name(host)]).arg(rank.get_program()).args(rank.get_args());
        on_host.envs(rank.get_envs().filter_map(|(name, value)| Some((name, value?)))).env("MASTER_ADDR", "10.77.0.1");
        start(&mut on_host)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = ['a', 'b'].map(|host| ip(&format!("netns del {}", self.name(host))));
    }
}

pub fn ranks_on_two_hosts_meet_and_notice_when_the_cable_is_cut() {
    let Some(hosts) = Hosts::new() else {
        eprintln!("skipped: no right to make network namespaces");
        return;
    };
    let port = port();
    let mut ranks = [('a', 0), ('b', 1)].map(|(host, rank)| hosts.start(host, &command(rank, 2, port, "stay")));
    ranks.iter_mut().for_each(Rank::met);
    assert!(ip(&format!("-n {} link set cable down", hosts.name('b'))));
    for (rank, other) in ranks.into_iter().zip([1, 0]) {
        let (code, said) = rank.end();
        assert!(code == 3 && said.contains(&format!("rank {other}: silent for 10 s")), "{said}");
    }
}
