// Asks Weir before it works. It needs Go 1.19 or newer, and nothing else.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// Decision has the fields of an answer that this program reads.
type Decision struct {
	Success   bool   `json:"success"`
	Remaining int64  `json:"remaining"`
	Reason    string `json:"reason"`
	// RetryAfterMs is nil if the call never passes, or nobody knows when.
	RetryAfterMs *int64 `json:"retryAfterMs"`
}

// Weir is a client. Make one for the process: it keeps connections.
type Weir struct {
	URL, Token string
	HTTP       http.Client
}

// Limit returns the decision, also a denial. An error says that there is none, for whatever reason.
func (weir *Weir) Limit(policy, key string, cost int64) (Decision, error) {
	var decision Decision
	body, err := json.Marshal(map[string]any{"policy": policy, "key": key, "cost": cost})
	if err != nil {
		return decision, err
	}
	request, err := http.NewRequest(http.MethodPost, weir.URL+"/v1/limit", bytes.NewReader(body))
	if err != nil {
		return decision, err
	}
	request.Header.Set("Authorization", "Bearer "+weir.Token)
	request.Header.Set("Content-Type", "application/json")
	answer, err := weir.HTTP.Do(request)
	if err != nil {
		return decision, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return decision, err
	}
	if answer.StatusCode != http.StatusOK {
		return decision, fmt.Errorf("weir answered %d: %s", answer.StatusCode, text)
	}
	return decision, json.Unmarshal(text, &decision)
}

func main() {
	url := os.Getenv("WEIR_URL")
	if url == "" {
		url = "http://127.0.0.1:8787"
	}
	// Longer than the deadlineMs of the policy (1 s), so that an answer by its onFailure still comes.
	weir := Weir{URL: url, Token: os.Getenv("WEIR_TOKEN"), HTTP: http.Client{Timeout: 2500 * time.Millisecond}}
	for _, customer := range os.Args[1:] {
		decision, err := weir.Limit("payments", "customer:"+customer, 1)
		switch {
		case err != nil:
			// It was not counted. Who only shows a page would go on here.
			fmt.Fprintln(os.Stderr, err)
			fmt.Printf("%s: try again later\n", customer)
		case decision.Success:
			fmt.Printf("%s: paid, %d left\n", customer, decision.Remaining)
		case decision.RetryAfterMs == nil:
			fmt.Printf("%s: denied\n", customer)
		default:
			fmt.Printf("%s: denied, again in %d ms\n", customer, *decision.RetryAfterMs)
		}
	}
}
