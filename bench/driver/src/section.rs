//! The sections of the page, by name. `sections` implements them.

/// A part of the page that can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// HTTP/1.1 keep-alive, one request at a time per connection.
    Plaintext,
    /// Plaintext with 16 requests in flight per connection.
    Pipelined,
    /// Matrices in a closed loop.
    Matrix,
    /// One connection: coroutines against threads.
    Single,
    /// More vCPUs than CPUs.
    Vcpus,
    /// Eight levels at overload.
    Levels,
    /// Figures of the published systems, in their form.
    Papers,
    /// Long requests among short ones, with and without preemption.
    Preemption,
    /// An urgent server beside a batch process, with and without the daemon.
    Processes,
    /// Unmodified servers beside a batch process, under the remedies of the kernel and the daemon.
    Assign,
    /// Processes under policies in user space.
    Sched,
    /// axum, mixed load at overload, and files.
    Serve,
    /// Files, by blocking and non-blocking calls.
    Files,
    /// Servers in C++, beside the runtime in Rust and other C++ libraries.
    Cpp,
    /// Microbenchmarks.
    Micro,
    /// Waits of ready tasks beside a computing worker and an idle one.
    Conserve,
    /// Microbenchmarks on two workers.
    Multi,
}

impl Section {
    /// All sections, in the order of the page.
    pub(crate) const ALL: [Section; 17] = [
        Section::Plaintext,
        Section::Pipelined,
        Section::Matrix,
        Section::Single,
        Section::Vcpus,
        Section::Levels,
        Section::Papers,
        Section::Preemption,
        Section::Processes,
        Section::Assign,
        Section::Sched,
        Section::Serve,
        Section::Files,
        Section::Cpp,
        Section::Micro,
        Section::Conserve,
        Section::Multi,
    ];

    /// Returns the section's name, on the command line and of its file in `results/`, and its title
    /// on the page.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Section::Plaintext => ("plaintext", "Plaintext, HTTP/1.1 keep-alive"),
            Section::Pipelined => (
                "pipelined",
                "Plaintext, 16 requests in flight per connection",
            ),
            Section::Matrix => ("matrix", "Matrix server, closed loop"),
            Section::Single => ("single", "One connection, closed loop"),
            Section::Vcpus => ("vcpus", "More vCPUs than CPUs"),
            Section::Levels => ("levels", "Eight levels at overload"),
            Section::Papers => ("papers", "The figures of the published systems"),
            Section::Preemption => ("preemption", "Long requests among short ones"),
            Section::Processes => ("processes", "An urgent server beside a batch process"),
            Section::Assign => ("assign", "Unmodified servers beside a batch process"),
            Section::Sched => ("sched", "Processes under policies in user space"),
            Section::Serve => ("serve", "Web servers"),
            Section::Files => ("files", "Files"),
            Section::Cpp => ("cpp", "Servers in C++"),
            Section::Micro => ("micro", "Microbenchmarks"),
            Section::Conserve => (
                "conserve",
                "Beside a worker that computes, while another one idles",
            ),
            Section::Multi => ("multi", "Microbenchmarks on two workers"),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.words().0
    }

    pub(crate) fn title(self) -> &'static str {
        self.words().1
    }
}
