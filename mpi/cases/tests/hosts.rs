//! Jobs on two hosts, which are network and name namespaces of this machine with a cable of their
//! own: no interface of the machine is used. They need root, `ip` and `unshare`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use upshift_mpi_cases::{serialise_jobs, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift-mpi-cases");

/// Two namespaces with a cable between them, removed when dropped.
struct Hosts {
    names: [String; 2],
    folder: PathBuf,
}

fn run(program: &str, arguments: &str) -> bool {
    let mut command = Command::new(program);
    let done = command.args(arguments.split_whitespace()).output();
    done.is_ok_and(|output| output.status.success())
}

fn script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

impl Hosts {
    /// Creates the namespaces; `None` if this machine allows none.
    fn new(test: &str) -> Option<Hosts> {
        let id = std::process::id();
        let names = ["a", "b"].map(|host| format!("upshift-{test}-{host}-{id}"));
        let folder = std::env::temp_dir().join(format!("upshift-mpi-{test}-{id}"));
        std::fs::create_dir_all(&folder).unwrap();
        let hosts = Hosts { names, folder };
        let [a, b] = &hosts.names;
        let made = run("unshare", "--uts true")
            && run("ip", &format!("netns add {a}"))
            && run("ip", &format!("netns add {b}"))
            && run(
                "ip",
                &format!("-n {a} link add cable type veth peer name cable netns {b}"),
            )
            && hosts.names.iter().zip(1..).all(|(name, number)| {
                run(
                    "ip",
                    &format!("-n {name} addr add 10.77.0.{number}/24 dev cable"),
                ) && run("ip", &format!("-n {name} link set cable up"))
                    && run("ip", &format!("-n {name} link set lo up"))
            });
        if !made {
            println!(
                "skipped: {test}: no network namespaces here: they need root, `ip` and `unshare`"
            );
            return None;
        }
        Some(hosts)
    }

    /// Runs a case with `near` ranks on the first host, and `far` on the second.
    fn job(&self, [near, far]: [usize; 2], case: &str) -> Output {
        let _guard = serialise_jobs();
        let [a, b] = &self.names;
        // In place of ssh: drops the name of the host, and starts the rest on the second one.
        let agent = self.folder.join("agent");
        script(
            &agent,
            &format!(
                "#!/bin/sh\nshift\nexec ip netns exec {b} unshare --uts sh -c \"hostname {b}; $*\"\n"
            ),
        );
        let ranks = near + far;
        let launch = self.folder.join("launch");
        script(
            &launch,
            &format!(
                "#!/bin/sh\nhostname {a}\nexec timeout -k 5 60 mpirun --oversubscribe \
                 --mca plm_rsh_agent {} --mca oob_tcp_if_include 10.77.0.0/24 \
                 --mca btl_tcp_if_include 10.77.0.0/24 --host 10.77.0.1:{near},10.77.0.2:{far} -n {ranks} \
                 {PROGRAM} {case}\n",
                agent.display()
            ),
        );
        Command::new("ip")
            .args(["netns", "exec", a, "unshare", "--uts"])
            .arg(launch)
            .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
            .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
            .env("RUST_BACKTRACE", "0")
            .output()
            .unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in &self.names {
            run("ip", &format!("netns del {name}"));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn a_rank_that_dies_alone_on_its_host_is_named() {
    let Some(hosts) = Hosts::new("alone") else {
        return;
    };
    for near in [1, 2] {
        let output = hosts.job([near, 1], "killed");
        let text = text(&output);
        assert!(!output.status.success(), "{text}");
        assert_ne!(output.status.code(), Some(124), "the job hangs\n{text}");
        let reports: Vec<_> = text
            .lines()
            .filter(|line| line.contains("the job ends"))
            .collect();
        assert_eq!(reports.len(), 1, "{text}");
        assert!(
            reports[0].contains(&format!("rank {near} (process "))
                && reports[0].contains("has died, alone on its host"),
            "{text}"
        );
    }
}

/// Messages of all sizes, every collective, and requests with levels, each checked by its ranks.
#[test]
fn messages_collectives_and_requests_cross_hosts() {
    let Some(hosts) = Hosts::new("cross") else {
        return;
    };
    for (ranks, case) in [
        ([1, 1], "points"),
        ([2, 2], "points"),
        ([1, 2], "collectives"),
        ([2, 2], "collectives"),
        ([1, 1], "requests"),
        ([2, 1], "requests"),
        ([1, 1], "overtakes"),
    ] {
        let output = hosts.job(ranks, case);
        let text = text(&output);
        let is_right = output.status.success() && text.contains("ok");
        assert!(is_right, "{case}, {ranks:?} ranks: {text}");
        // No rank is missed, since all leave in order.
        assert!(!text.contains("upshift-mpi:"), "{case}, {ranks:?}: {text}");
    }
}
