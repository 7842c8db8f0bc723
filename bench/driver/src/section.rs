//! The sections of the page, by name. What they do is in `sections`.

/// A part of the page that can be measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Section {
    /// HTTP/1.1 keep-alive, one request at a time per connection.
    Plaintext,
    /// The same, 16 requests in flight per connection.
    Pipelined,
    /// Matrices in a closed loop.
    Matrix,
    /// One connection: coroutines against threads.
    Single,
    /// More vCPUs than CPUs.
    Vcpus,
    /// Eight levels at overload.
    Levels,
    /// Long requests among short ones, with and without preemption.
    Preemption,
    /// An urgent server beside a batch process, without and with the daemon.
    Processes,
    /// Unmodified servers beside a batch process, under what the kernel and the daemon can do for them.
    Assign,
    /// Processes under policies in user space.
    Sched,
    /// axum, mixed load at overload, and files.
    Serve,
    /// Files, by blocking calls and without.
    Files,
    /// Servers in C++, beside the runtime in Rust and other libraries of C++.
    Cpp,
    /// Microbenchmarks.
    Micro,
    /// What is ready beside a worker that computes and one that idles.
    Conserve,
    /// Microbenchmarks on two workers.
    Multi,
}

impl Section {
    /// All, in the order of the page.
    pub(crate) const ALL: [Section; 16] = [
        Section::Plaintext,
        Section::Pipelined,
        Section::Matrix,
        Section::Single,
        Section::Vcpus,
        Section::Levels,
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

    /// Its name on the command line, and that of its file in `results/`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Section::Plaintext => "plaintext",
            Section::Pipelined => "pipelined",
            Section::Matrix => "matrix",
            Section::Single => "single",
            Section::Vcpus => "vcpus",
            Section::Levels => "levels",
            Section::Preemption => "preemption",
            Section::Processes => "processes",
            Section::Assign => "assign",
            Section::Sched => "sched",
            Section::Serve => "serve",
            Section::Files => "files",
            Section::Cpp => "cpp",
            Section::Micro => "micro",
            Section::Conserve => "conserve",
            Section::Multi => "multi",
        }
    }

    /// It measures every peer that serves plaintext or matrices.
    pub(crate) fn needs_peers(self) -> bool {
        matches!(
            self,
            Section::Plaintext | Section::Pipelined | Section::Matrix | Section::Single
        )
    }

    /// It measures Upshift, whatever peers are asked for.
    pub(crate) fn needs_upshift(self) -> bool {
        matches!(
            self,
            Section::Vcpus
                | Section::Levels
                | Section::Preemption
                | Section::Processes
                | Section::Assign
                | Section::Serve
        )
    }
}
