// Works as the leader until the lock is lost, then stops and acquires it again: leader SERVERS PATH NAME
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"zklock"
)

func run(servers, path, name string) error {
	ctx := context.Background()
	client, err := zklock.Connect(ctx, servers)
	if err != nil {
		return err
	}
	defer client.Close()
	lock, err := client.Mutex(path)
	if err != nil {
		return err
	}
	for {
		hold, err := lock.Acquire(ctx) // also waits while no server answers
		if err != nil {
			return err
		}
		fmt.Println(name, "leads")
		lead(hold, name)
		fmt.Println(name, "stops")
		// The hold has ended, even if no server can confirm this.
		if err := hold.Release(); err != nil && !errors.Is(err, zklock.ErrLost) && !errors.Is(err, zklock.ErrConnection) {
			return err
		}
	}
}

// lead works until the hold is no longer safe. A step must be short compared with the session timeout.
func lead(hold *zklock.Hold, name string) {
	for {
		select {
		case <-hold.Lost():
			return
		case <-time.After(200 * time.Millisecond):
		}
		if !hold.IsHeld() {
			return
		}
		fmt.Println(name, "works")
	}
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("leader: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: leader SERVERS PATH NAME")
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		log.Fatal(err)
	}
}
