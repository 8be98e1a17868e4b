// Moves an amount between two accounts while holding the locks of both: transfer SERVERS FROM TO AMOUNT SECONDS
//
// An account is a file in the current directory.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"zklock"
)

func balance(account string) (int, error) {
	text, err := os.ReadFile(account)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func setBalance(account string, amount int) error {
	return os.WriteFile(account, []byte(fmt.Sprintln(amount)), 0o644)
}

func transfer(from, to string, amount int) (string, error) {
	available, err := balance(from)
	if err != nil || available < amount {
		return "not enough", err
	}
	other, err := balance(to)
	if err != nil {
		return "", err
	}
	return "transferred", errors.Join(setBalance(from, available-amount), setBalance(to, other+amount))
}

func lockOf(client *zklock.Client, from, to string) (*zklock.Lock, error) {
	one, err := client.Mutex("/accounts/" + from)
	if err != nil {
		return nil, err
	}
	two, err := client.Mutex("/accounts/" + to)
	if err != nil {
		return nil, err
	}
	return zklock.Multi(one, two)
}

func run(servers, from, to string, amount int, limit time.Duration) error {
	client, err := zklock.Connect(context.Background(), servers)
	if err != nil {
		return err
	}
	defer client.Close()
	both, err := lockOf(client, from, to)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	hold, err := both.Acquire(ctx) // acquires both locks within the deadline, or none
	if errors.Is(err, zklock.ErrTimeout) {
		fmt.Println("not in time")
		return nil
	}
	if err != nil {
		return err
	}
	result, err := transfer(from, to, amount)
	if err := errors.Join(err, hold.Release()); err != nil {
		return err
	}
	fmt.Println(result)
	return nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("transfer: ")
	if len(os.Args) != 6 {
		log.Fatal("usage: transfer SERVERS FROM TO AMOUNT SECONDS")
	}
	amount, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	seconds, err := strconv.ParseFloat(os.Args[5], 64)
	if err != nil {
		log.Fatal(err)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], amount, time.Duration(seconds*float64(time.Second))); err != nil {
		log.Fatal(err)
	}
}
