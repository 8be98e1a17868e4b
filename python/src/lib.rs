//! Python
