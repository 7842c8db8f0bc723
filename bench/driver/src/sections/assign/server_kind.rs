//! Describes the measured servers: nginx, redis and postgres, from their Debian packages.

use std::path::PathBuf;
use std::process::Command;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerKind {
    /// nginx, with two workers that answer with a constant.
    Nginx,
    /// redis, without persistence.
    Redis,
    /// postgres, which has a process for each connection and looks up rows by their key.
    Postgres,
}

impl ServerKind {
    /// Returns the name of the server, of its processes, and of its package.
    fn names(self) -> [&'static str; 3] {
        match self {
            ServerKind::Nginx => ["nginx", "nginx", "nginx-light"],
            ServerKind::Redis => ["redis", "redis-server", "redis-server"],
            ServerKind::Postgres => ["postgres", "postgres", "postgresql"],
        }
    }

    pub(super) fn name(self) -> &'static str {
        self.names()[0]
    }

    pub(super) fn comm(self) -> &'static str {
        self.names()[1]
    }

    pub(super) fn program(self) -> Option<PathBuf> {
        let exists = |path: &PathBuf| path.exists();
        match self {
            ServerKind::Nginx => Some("/usr/sbin/nginx".into()).filter(exists),
            ServerKind::Redis => Some("/usr/bin/redis-server".into()).filter(exists),
            ServerKind::Postgres => {
                let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
                let mut programs = versions.map(|version| version.path().join("bin/postgres"));
                programs.find(exists)
            }
        }
    }

    /// Returns the version that the program prints.
    ///
    /// # Errors
    /// The program is not installed (the message says how to install it), or cannot be run.
    pub(super) fn version(self) -> Result<String, String> {
        let [name, _, package] = self.names();
        let program = self
            .program()
            .ok_or_else(|| format!("{name} is not installed: `sudo apt-get install {package}`"))?;
        let flag = if self == ServerKind::Nginx {
            "-v"
        } else {
            "--version"
        };
        let output = Command::new(program).arg(flag).output();
        let output = output.map_err(|e| e.to_string())?;
        // nginx prints its version to standard error.
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }
}
