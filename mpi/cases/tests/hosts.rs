//! Tests jobs on two hosts, which are network and UTS namespaces of this machine with a virtual
//! cable between them. The tests use no network interface of the machine itself. They need root,
//! `ip` and `unshare`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use upshift_mpi_cases::{serialise_jobs, text};

const PROGRAM: &str = env!("CARGO_BIN_EXE_upshift-mpi-cases");

/// Two network namespaces with a virtual cable between them, which are removed on drop.
struct Hosts {
    names: [String; 2],
    /// Folder for the scripts that start the job.
    folder: PathBuf,
}

fn run(program: &str, arguments: &str) -> bool {
    let mut command = Command::new(program);
    let output = command.args(arguments.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

fn create_script(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

impl Hosts {
    /// Creates the namespaces, or returns `None` if this machine does not allow that.
    fn new(test: &str) -> Option<Hosts> {
        let id = std::process::id();
        let names = ["a", "b"].map(|host| format!("upshift-{test}-{host}-{id}"));
        let folder = std::env::temp_dir().join(format!("upshift-mpi-{test}-{id}"));
        std::fs::create_dir_all(&folder).unwrap();
        let hosts = Hosts { names, folder };
        let [a, b] = &hosts.names;
        let created = run("unshare", "--uts true")
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
        if !created {
            println!("skipped: {test}: network namespaces need root, `ip` and `unshare`");
            return None;
        }
        Some(hosts)
    }

    /// Runs a case as a job with `first` ranks on the first host and `second` ranks on the second.
    fn run_job(&self, [first, second]: [usize; 2], case: &str) -> Output {
        let _guard = serialise_jobs();
        let [a, b] = &self.names;
        // Replaces ssh. The script ignores the name of the host, and starts the command on the
        // second host.
        let agent = self.folder.join("agent");
        create_script(
            &agent,
            &format!(
                "#!/bin/sh\nshift\nexec ip netns exec {b} unshare --uts sh -c \"hostname {b}; $*\"\n"
            ),
        );
        let ranks = first + second;
        let launch = self.folder.join("launch");
        create_script(
            &launch,
            &format!(
                "#!/bin/sh\nhostname {a}\nexec timeout -k 5 60 mpirun --oversubscribe \
                 --mca plm_rsh_agent {} --mca oob_tcp_if_include 10.77.0.0/24 \
                 --mca btl_tcp_if_include 10.77.0.0/24 --host 10.77.0.1:{first},10.77.0.2:{second} -n {ranks} \
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
fn the_only_rank_of_a_host_is_named_if_it_dies() {
    let Some(hosts) = Hosts::new("alone") else {
        return;
    };
    for first_host_ranks in [1, 2] {
        let output = hosts.run_job([first_host_ranks, 1], "killed");
        let text = text(&output);
        assert!(!output.status.success(), "{text}");
        assert_ne!(output.status.code(), Some(124), "the job hangs\n{text}");
        let messages: Vec<_> = text
            .lines()
            .filter(|line| line.contains("the job ends"))
            .collect();
        assert_eq!(messages.len(), 1, "{text}");
        assert!(
            messages[0].contains(&format!("rank {first_host_ranks} (process "))
                && messages[0].contains("has died, alone on its host"),
            "{text}"
        );
    }
}

/// The ranks check messages of all sizes, every collective, and requests with levels.
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
        let output = hosts.run_job(ranks, case);
        let text = text(&output);
        let passed = output.status.success() && text.contains("ok");
        assert!(passed, "{case}, {ranks:?} ranks: {text}");
        // No rank is reported as missing, since all ranks leave in an orderly way.
        assert!(!text.contains("upshift-mpi:"), "{case}, {ranks:?}: {text}");
    }
}
