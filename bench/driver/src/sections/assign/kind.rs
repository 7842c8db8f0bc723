//! Which of the three programs, and what is installed of it.

use std::path::PathBuf;
use std::process::Command;

/// Which program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Two workers that answer with a constant.
    Nginx,
    /// Without persistence.
    Redis,
    /// A process for each connection; rows by key.
    Postgres,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Redis => "redis",
            Kind::Postgres => "postgres",
        }
    }

    /// The name of its processes.
    pub(super) fn comm(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx",
            Kind::Redis => "redis-server",
            Kind::Postgres => "postgres",
        }
    }

    fn package(self) -> &'static str {
        match self {
            Kind::Nginx => "nginx-light",
            Kind::Redis => "redis-server",
            Kind::Postgres => "postgresql",
        }
    }

    pub(super) fn program(self) -> Option<PathBuf> {
        let places = match self {
            Kind::Nginx => vec![PathBuf::from("/usr/sbin/nginx")],
            Kind::Redis => vec![PathBuf::from("/usr/bin/redis-server")],
            Kind::Postgres => {
                let versions = std::fs::read_dir("/usr/lib/postgresql")
                    .into_iter()
                    .flatten();
                versions
                    .flatten()
                    .map(|it| it.path().join("bin/postgres"))
                    .collect()
            }
        };
        places.into_iter().find(|it| it.exists())
    }

    /// What it calls itself.
    ///
    /// # Errors
    /// It is not installed: what to do.
    pub(super) fn version(self) -> Result<String, String> {
        let program = self.program().ok_or_else(|| {
            format!(
                "{} is not installed: `sudo apt-get install {}`",
                self.name(),
                self.package()
            )
        })?;
        let flag = if self == Kind::Nginx {
            "-v"
        } else {
            "--version"
        };
        let output = Command::new(program)
            .arg(flag)
            .output()
            .map_err(|e| e.to_string())?;
        // nginx tells it where errors go.
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok(text.lines().next().unwrap_or_default().to_owned())
    }
}
