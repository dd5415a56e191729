//! Threads that act for their program, and their death words.

use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use martlet_fabric::host::page::Page;
use martlet_fabric::host::{DeathWords, DeathWordsError, socket};
use martlet_fabric::primitive::{Ordering, fence};
use martlet_protocol::basics::layout::life::{OWNER_DIED, TID_MASK};

use crate::wire::Request;
use crate::words::{MAX_ACTING, death_word};

/// Why a thread holds no death word.
#[derive(Debug, thiserror::Error)]
pub enum ActError {
    /// As many threads of the program hold one as is possible.
    #[error("{MAX_ACTING} threads of this program act already, as many as there is room for")]
    Many,
    /// The kernel refused, or the thread cannot have one.
    #[error(transparent)]
    Words(#[from] DeathWordsError),
}

/// The program's death words: their page, and which of them are taken.
#[derive(Debug)]
pub(super) struct Words {
    pub(super) page: Page,
    /// One bit for each word.
    pub(super) taken: Mutex<u64>,
    /// Where the warden is told of them; `None` while there is no warden.
    pub(super) socket: Mutex<Option<Arc<OwnedFd>>>,
}

impl Words {
    fn tell(&self, request: &Request) {
        if let Some(socket) = &*self.socket.lock().unwrap_or_else(PoisonError::into_inner) {
            // If the warden cannot be told now, it is gone, or will be given up for not answering. The next warden is told all words.
            let _ = socket::send(socket, &request.encode(0), &[]);
        }
    }
}

/// With this, threads of a program register that they act for it. Any thread may have one.
#[derive(Clone, Debug)]
pub struct Threads(pub(super) Arc<Words>);

/// A thread that acts for its program. When this is dropped, the thread no longer acts; if the thread ends without dropping it, by SIGKILL for example, it has
/// died.
///
/// When all acting threads have died, the application has failed, and the warden knows at once.
#[must_use = "dropped, the thread acts no more"]
#[derive(Debug)]
pub struct Acting {
    words: Option<DeathWords>,
    index: u16,
    shared: Arc<Words>,
    /// The words belong to this thread.
    _thread: PhantomData<*const ()>,
}

impl Threads {
    /// Registers that the calling thread acts for the program.
    ///
    /// # Errors
    /// When too many do, or when the system refuses.
    pub fn act(&self) -> Result<Acting, ActError> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let index = taken.trailing_ones();
        if index >= u32::from(MAX_ACTING) {
            return Err(ActError::Many);
        }
        let words = self.0.page.register_death_words(&[death_word(index as u16)])?;
        *taken |= 1 << index;
        drop(taken);
        self.0.tell(&Request::Act { word: index as u16 });
        Ok(Acting { words: Some(words), index: index as u16, shared: Arc::clone(&self.0), _thread: PhantomData })
    }
}

impl Acting {
    /// Whether another acting thread is alive. A thread that begins while others act asks this before it does anything. If no other is alive, the warden may
    /// take the program for dead, now or soon: it may have looked at all words just before this thread stored its own.
    pub fn has_company(&self) -> bool {
        // Pairs with the order of the eye's looks, first at the word of the thread that died and then at all words: either the eye finds ours, or we find that
        // thread dead.
        fence(Ordering::SeqCst);
        let is_alive = |word: u16| {
            let value = self.shared.page.load(death_word(word));
            value & OWNER_DIED == 0 && value & TID_MASK != 0
        };
        (0..MAX_ACTING).any(|word| word != self.index && is_alive(word))
    }

    /// Whether the thread acts for the program through these.
    pub fn is_by(&self, threads: &Threads) -> bool {
        Arc::ptr_eq(&self.shared, &threads.0)
    }
}

impl Drop for Acting {
    fn drop(&mut self) {
        // The word is given back first, which by itself shows that this is no death.
        drop(self.words.take());
        self.shared.tell(&Request::Rest { word: self.index });
        *self.shared.taken.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.index);
    }
}
