package zklock

// PendingNotices returns the number of operations whose end the completion queue will report.
func PendingNotices() int {
	completions.mutex.Lock()
	defer completions.mutex.Unlock()
	return len(completions.onDone)
}
