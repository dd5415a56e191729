//! What the host's own tools are to know of the service: which process it is.

use std::path::PathBuf;

use martlet_cluster::fail::{Context as _, Outcome};

/// The file that names this process, for as long as the service runs.
#[derive(Debug)]
pub struct PidFile(PathBuf);

impl PidFile {
    /// Writes it.
    pub fn write(path: PathBuf) -> Outcome<PidFile> {
        std::fs::write(&path, format!("{}\n", std::process::id())).context(format_args!("cannot write {}", path.display()))?;
        Ok(PidFile(path))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        // The process that has taken it away has done what is to be done.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_a_process_goes_with_it() {
        let path = std::env::temp_dir().join(format!("martlet-run-pid-{}", std::process::id()));
        let file = PidFile::write(path.clone()).expect("it is written");
        assert_eq!(std::fs::read_to_string(&path).expect("there"), format!("{}\n", std::process::id()));
        drop(file);
        assert!(!path.exists());
        assert!(PidFile::write("/no/such/directory/x.pid".into()).is_err());
    }
}
