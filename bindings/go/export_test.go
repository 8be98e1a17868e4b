//go:build cgo && linux

package zklock

// PendingNotices returns the number of operations whose end the completion queue will report.
func PendingNotices() int {
	completions.mutex.Lock()
	defer completions.mutex.Unlock()
	return len(completions.onDone)
}

// OccupyStarts prevents the start of operations until the program calls the returned function.
func OccupyStarts() (free func()) {
	for range make([]struct{}, cap(changing)) {
		changing <- struct{}{}
	}
	return func() {
		for range make([]struct{}, cap(changing)) {
			<-changing
		}
	}
}

// BeforeFree makes Close call a function immediately before it frees the handle of the lock.
func BeforeFree(lock *Lock, call func()) {
	free := lock.free
	lock.free = func() {
		call()
		free()
	}
}

// HandlesOf returns the number of handles that the client frees when it closes.
func HandlesOf(client *Client) int {
	client.mutex.Lock()
	defer client.mutex.Unlock()
	return len(client.onClose)
}
