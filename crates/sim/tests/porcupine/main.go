// Reads histories as lines of JSON and says of each whether porcupine finds it linearizable: "yes", "no" or "unknown".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// What a client asked for and what it got. Keys and values are text; null is nothing.
type operation struct {
	Client   int     `json:"client"`
	Call     int64   `json:"call"`
	Return   *int64  `json:"return"`
	Key      string  `json:"key"`
	Action   string  `json:"action"`
	Value    *string `json:"value"`
	Expected *string `json:"expected"`
	// The reply: a value for get, a truth for delete and swap, nothing for put.
	Seen    *string `json:"seen"`
	Changed *bool   `json:"changed"`
}

type state struct {
	present bool
	value   string
}

func of(value *string) state {
	if value == nil {
		return state{}
	}
	return state{true, *value}
}

func step(before, input, output interface{}) (bool, interface{}) {
	held, op := before.(state), input.(operation)
	replied := output.(bool)
	fits := func(changed bool) bool { return !replied || (op.Changed != nil && *op.Changed == changed) }
	switch op.Action {
	case "get":
		return !replied || held == of(op.Seen), held
	case "put":
		return true, of(op.Value)
	case "delete":
		return fits(held.present), state{}
	case "swap":
		if held == of(op.Expected) {
			return fits(true), of(op.Value)
		}
		return fits(false), held
	}
	panic("unknown action " + op.Action)
}

var store = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).Key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() interface{} { return state{} },
	Step: step,
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var operations []operation
		if err := json.Unmarshal(lines.Bytes(), &operations); err != nil {
			fmt.Fprintln(os.Stderr, "no history:", err)
			os.Exit(1)
		}
		var history []porcupine.Operation
		for _, op := range operations {
			// An operation without a reply may take effect at any time, or so late that nobody sees it.
			returned := int64(math.MaxInt64)
			if op.Return != nil {
				returned = *op.Return
			}
			history = append(history, porcupine.Operation{
				ClientId: op.Client, Input: op, Call: op.Call, Output: op.Return != nil, Return: returned,
			})
		}
		switch porcupine.CheckOperationsTimeout(store, history, 5*time.Second) {
		case porcupine.Ok:
			fmt.Println("yes")
		case porcupine.Illegal:
			fmt.Println("no")
		default:
			fmt.Println("unknown")
		}
	}
	if err := lines.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot read:", err)
		os.Exit(1)
	}
}
